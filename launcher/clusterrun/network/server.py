"""The server on node 0: runs the coordinator in the loop of node 0's agent.

Messages of the other agents, new and closed connections become events of the coordinator, and its
actions are performed here. Messages between the coordinator and node 0's own agent stay in memory.
"""

import errno
import socket
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import assert_never

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import LauncherError
from clusterrun.loop import NEVER, Loop, Priority, Ready
from clusterrun.network.addresses import is_own, loopback_address, plain_address
from clusterrun.network.channel import (
    FROM_MEMBERS,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Channel,
    ChannelEnd,
)
from clusterrun.network.duplicate_check import DuplicateCheck
from clusterrun.network.handshake import (
    BadFrame,
    coordinator_handshake,
    packed_address,
)
from clusterrun.network.join_failures import error_of
from clusterrun.network.joining_node import JoiningNode
from clusterrun.network.rendezvous_port import RendezvousPort, open_rendezvous_port
from clusterrun.policy import job_events
from clusterrun.policy.coordinator import Coordinator, Finished
from clusterrun.policy.events import Event
from clusterrun.policy.heartbeat import SilenceWatch
from clusterrun.policy.members import LOCAL_CONNECTION
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    FromMember,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Paused,
    Refusal,
    Refused,
    WorldFormed,
)
from clusterrun.policy.queries import Answer
from clusterrun.policy.settings import NODE_ZERO_SILENCE_INTERVALS
from clusterrun.ports import MasterPort
from clusterrun.processes import require_descriptors

SECONDS_TO_SEND_HELLO = 10.0
SECONDS_TO_READ_A_REFUSAL = 2.0
SECONDS_WITHOUT_DESCRIPTORS = 1.0

SECONDS_TO_REFUSE_LATE_NODES = 0.7
"""For nodes that start a little later to learn why the job can't start."""

MAX_UNAUTHENTICATED = 256
"""Connections without a ``Hello`` at the same time, in addition to one for each node."""

MAX_ACCEPTED_PER_TURN = 16
"""A flood of connections must not keep members or signals waiting."""

MAX_UNSENT_BEFORE_ANSWER = 4 << 20
"""With more, the body of another node's answer is dropped. The channel would end at twice as much, and
that node's answer has up to 3 MiB."""

TOO_SLOW = "has answered, but this node is too slow to receive all answers"

OTHER_DESCRIPTORS = 64
"""Open files that node 0 needs in addition to its connections."""


class Connection(Struct, eq=False):
    """A connection: unauthenticated until its ``Hello`` has come, then a member's."""

    number: int
    channel: Channel[FromMember]
    peer: str
    """The IP address of the other end."""
    deadline: float
    """When to close it if it is unauthenticated or closing."""
    serve: Ready[Event]
    is_member: bool = False
    is_closing: bool = False
    """It is closed once all messages are sent; received messages are ignored."""

    def watch(self, loop: Loop[Event]) -> None:
        priority = Priority.AUTHENTICATED if self.is_member else Priority.UNAUTHENTICATED
        self.channel.watch(loop, self.serve, priority)


class CoordinatorServer:
    """Runs the coordinator in the loop of node 0's agent."""

    def __init__(  # noqa: PLR0913 - the parts of node 0
        self,
        node: JoiningNode,
        loop: Loop[Event],
        coordinator: Coordinator,
        handle_message: Callable[[FromCoordinator, float], Iterable[Event]],
        *,
        port: RendezvousPort,
        workers: MasterPort | None = None,
    ) -> None:
        """Start to listen.

        Args:
            node: this node.
            loop: the agent's loop.
            coordinator: the policy.
            handle_message: returns the events that a message to this node's own agent is for it.
            port: where the other nodes join; closed by ``finish``.
            workers: MASTER_PORT, released by ``finish``; None: ``port``, once all nodes have joined.

        Raises:
            MachineError: the limit of open files is too low for a connection to each node.

        """
        settings = coordinator.settings
        require_descriptors(
            settings.nodes + OTHER_DESCRIPTORS,
            settings.nodes + 2 * MAX_UNAUTHENTICATED,
            f"connections to {settings.nodes} {settings.job.agent_unit}s",
        )
        self.coordinator = coordinator
        self.reached_at: str | None = None
        """The address of this node to which the first member from another machine connected."""
        self._node = node
        self._loop = loop
        self._settings = settings
        self._handle_message = handle_message
        self._port = port
        self._workers = workers
        self._own_messages: list[FromCoordinator] = []
        """Messages from the coordinator to this node's own agent."""
        self._refusal: LauncherError | None = None
        """Why the job can't start."""
        self._refusal_deadline = NEVER
        self._is_over = False
        self._duplicate_check: DuplicateCheck | None = None
        self._connections: dict[int, Connection] = {}
        self._unauthenticated: dict[int, Connection] = {}
        """In the order of their deadlines."""
        self._closing: dict[int, Connection] = {}
        self._last_number = LOCAL_CONNECTION
        now = loop.clock()
        self._silence_watch = SilenceWatch(settings.rhythm, now)
        self._accept_again = NEVER
        self._last_turn = now
        loop.add_timer(self)
        self._listen()

    def check_for_duplicate(self) -> None:
        """Check whether another machine at node 0's address is node 0 as well."""
        self._duplicate_check = DuplicateCheck(self._node, self._loop, self._check_duplicate)

    @property
    def master_addr(self) -> str:
        """MASTER_ADDR of this node's workers in the first attempt."""
        check = self._duplicate_check
        return self._settings.host.value if check is None else check.master_addr

    @property
    def due(self) -> float:
        first = next(iter(self._unauthenticated.values()), None)
        return min(
            self.coordinator.due,
            self._silence_watch.due,
            NEVER if first is None else first.deadline,
            min((each.deadline for each in self._closing.values()), default=NEVER),
            NEVER if self._duplicate_check is None else self._duplicate_check.due,
            self._last_turn + self._settings.rhythm.timeout,
            self._accept_again,
            self._refusal_deadline,
        )

    def events(self, now: float) -> Iterable[Event]:
        """Handle passed deadlines.

        The loop has read all that members had sent before, so a member that seems silent is silent.

        Raises:
            RendezvousError: the nodes disagree, or did not all join in time.

        """
        self._report_own_stop(now)
        if now >= self._accept_again:
            self._listen()
        for number in self._silence_watch.lost(now):
            self.handle(job_events.MemberSilent(number, now))
        if now >= self.coordinator.due:
            self.handle(job_events.TimePassed(now))
        self._close_due(now)
        return self._check_duplicate(now)

    def send(self, message: AgentMessage, now: float) -> Iterable[Event]:
        """Pass a message of this node's own agent to the coordinator; return the answer."""
        self._pass_on(LOCAL_CONNECTION, message, now)
        return self._own_events(now)

    def abandon(self, why: str, now: float, hint: str = "") -> None:
        """Report to all members that the job does not start."""
        self.handle(job_events.JoinAbandoned(why, now, hint))

    def handle(self, event: job_events.CoordinatorEvent) -> None:
        """Have the coordinator handle an event, and perform its actions."""
        self._perform(self.coordinator.handle(event), event.at)

    def finish(self, seconds: float) -> None:
        """Let members read the last messages, for at most ``seconds``, and close everything."""
        self._is_over = True
        deadline = self._loop.clock() + seconds
        self._end_check()
        for connection in [*self._unauthenticated.values()]:
            self._close(connection)
        # Members close their connections once they have read the last message.
        while isinstance(self.coordinator.state, Finished) and self._connections:
            if self._loop.clock() >= deadline:
                break
            self._loop.turn(deadline)
        self._loop.remove_timer(self)
        for connection in [*self._connections.values()]:
            self._close(connection)
        self._forget_port()
        self._port.release()
        if self._workers is not None:
            self._workers.release()

    # The coordinator's actions.

    def _perform(self, actions: Iterable[job_events.Action], at: float) -> None:
        for action in actions:
            match action:
                case job_events.Send(connections, message):
                    if isinstance(message, Paused) and not message.paused:
                        # Members have not expected node 0 to send anything meanwhile.
                        self._last_turn = at
                    self._send(connections, message)
                case job_events.Disconnect(connections):
                    for number in connections:
                        if connection := self._connections.get(number):
                            self._close_later(connection)
                case job_events.PreparePort():
                    ready = job_events.PortReady(self._next_port(), at)
                    self._perform(self.coordinator.handle(ready), at)
                case job_events.StopListening():
                    self._forget_port()
                    self._port.close()
                case job_events.PrintOnNodeZero(text):
                    self._node.context.notice(text)
                case _:
                    assert_never(action)

    def _send(self, connections: Iterable[int], message: FromCoordinator) -> None:
        body = msgspec.msgpack.encode(message)
        for number in connections:
            if number == LOCAL_CONNECTION:
                self._own_messages.append(message)
            elif connection := self._connections.get(number):
                channel = connection.channel
                is_answer = isinstance(message, Answer)
                if is_answer and channel.unsent_bytes > MAX_UNSENT_BEFORE_ANSWER:
                    body = msgspec.msgpack.encode(replace(message, body=b"", problem=TOO_SLOW))
                channel.send_body(body)
                if channel.wants_write:
                    connection.watch(self._loop)

    def _next_port(self) -> int:
        """Return MASTER_PORT of the next attempt; a port that was set is kept."""
        workers = self._workers
        return self.coordinator.port if workers is None or workers.is_chosen else workers.next()

    # Node 0's own agent.

    def _own_events(self, now: float) -> Iterable[Event]:
        """Return the coordinator's messages to its own agent as events.

        Raises:
            LauncherError: the job can't start, and all nodes have been told, or the time for that is over.

        """
        events = list[Event]()
        messages, self._own_messages = self._own_messages, []
        if self._is_over:
            return events
        for message in messages:
            match message:
                case Refused(refusal):
                    self._refusal = error_of(message)
                    self._refusal_deadline = now + SECONDS_TO_REFUSE_LATE_NODES
                    if refusal is Refusal.CHECK_FAILED:
                        # The other nodes' checks may still run, for up to the join timeout.
                        self._refusal_deadline = now + self._settings.job.join.rdzv_timeout
                case _:
                    events += self._handle_message(message, now)
                    if isinstance(message, WorldFormed):
                        self._end_check()
        if self._refusal and (self._all_are_informed or now >= self._refusal_deadline):
            raise self._refusal
        return events

    @property
    def _all_are_informed(self) -> bool:
        """Whether all nodes have been told why the job can't start."""
        waits = any(each.channel.wants_write for each in self._connections.values())
        return self.coordinator.all_are_informed and not waits

    def _check_duplicate(self, now: float) -> Iterable[Event]:
        """Continue the check for a second node 0."""
        check = self._duplicate_check
        if check is not None:
            check.turn(now)
            if check.failure is not None and self._refusal is None:
                self.abandon(check.failure.message, now, check.failure.hint)
        return self._own_events(now)

    def _end_check(self) -> None:
        if self._duplicate_check is not None:
            self._duplicate_check.close()
            self._duplicate_check = None

    # Unauthenticated connections.

    def _listen(self) -> None:
        self._accept_again = NEVER
        for descriptor in self._port.descriptors:
            self._loop.watch(descriptor, self._accept, Priority.LISTENERS)

    def _forget_port(self) -> None:
        for descriptor in self._port.descriptors:
            self._loop.forget(descriptor)

    def _accept(self, now: float) -> Iterable[Event]:
        try:
            for sock, sockname in islice(self._port.accepted(), MAX_ACCEPTED_PER_TURN):
                self._accept_one(sock, plain_address(sockname[0]), now)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # Close the unauthenticated connection that has been silent longest, and retry later.
            self._forget_port()
            self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
            self._refuse_oldest("too many connections", now)
        return self._own_events(now)

    def _accept_one(self, sock: socket.socket, peer: str, now: float) -> None:
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED + self.coordinator.size:
            self._refuse_oldest("too many connections", now)
        own_end = packed_address(sock.getsockname())
        handshake = coordinator_handshake(self._node.token, own_end, self._is_own)
        channel = Channel(FROM_MEMBERS, sock, handshake)
        channel.max_body_bytes = MAX_HELLO_BYTES
        self._last_number = number = self._last_number + 1
        serve, deadline = partial(self._serve, number), now + SECONDS_TO_SEND_HELLO
        connection = Connection(number, channel, peer, deadline, serve)
        self._connections[number] = self._unauthenticated[number] = connection
        connection.watch(self._loop)
        self.handle(job_events.CallerConnected(now))

    def _is_own(self, address: str) -> bool:
        return is_own(address, self._node.context.interfaces())

    def _refuse_oldest(self, why: str, now: float) -> None:
        first = next(iter(self._unauthenticated.values()), None)
        if first is not None:
            self._drop(first, now, why)

    def _admit(self, connection: Connection, hello: Hello, now: float) -> None:
        if connection.channel.is_closed_by_peer():
            # The agent has already connected again.
            self._close_later(connection)
            return
        del self._unauthenticated[connection.number]
        connection.is_member = True
        connection.deadline = NEVER
        connection.channel.max_body_bytes = MAX_FRAME_BYTES
        connection.channel.limit_silence(self._settings.member_silence)
        self._silence_watch.received(connection.number, now)
        self._answer(connection.number, hello.at)
        if not self.reached_at and connection.channel.local_address != connection.peer:
            self.reached_at = connection.channel.local_address
        self.handle(job_events.HelloReceived(connection.number, connection.peer, hello, now))

    # Members.

    def _report_own_stop(self, now: float) -> None:
        """Let the coordinator know if this process was stopped for so long that members give it up."""
        seconds, self._last_turn = now - self._last_turn, now
        # Members may have received the last message an interval before its last turn.
        if seconds > self._settings.rhythm.after(NODE_ZERO_SILENCE_INTERVALS - 1.0):
            self.handle(job_events.NodeZeroWasStopped(seconds, now))

    def _serve(self, number: int, now: float) -> Iterable[Event]:
        """Send queued data on a connection, and handle what was received."""
        self._report_own_stop(now)
        connection = self._connections.get(number)
        if connection is None:
            return ()
        channel = connection.channel
        try:
            for message in channel.receive():
                self._handle_frame(connection, message, now)
        except BadFrame as error:
            self._drop(connection, now, f"it {error}")
        if channel.end is None and (channel.wants_write or not connection.is_closing):
            connection.watch(self._loop)
        elif channel.end and channel.has_unfinished_input and not connection.is_member:
            self._drop(connection, now, "it closed the connection in the middle of a message")
        else:
            self._drop(connection, now)
        return self._own_events(now)

    def _handle_frame(self, connection: Connection, message: FromMember, now: float) -> None:
        number = connection.number
        if connection.is_closing:
            return
        if not connection.is_member:
            if not isinstance(message, Hello):
                raise BadFrame("sent another message before its Hello")
            self._admit(connection, message, now)
            return
        self._silence_watch.received(number, now)
        if self.coordinator.is_paused(number) and not isinstance(message, Paused):
            raise BadFrame("sent a message while it was paused")
        match message:
            case Hello():
                raise BadFrame("sent a second Hello")
            case Heartbeat(at):
                self._answer(number, at)
            case _:
                self._pass_on(number, message, now)

    def _pass_on(self, number: int, message: AgentMessage, now: float) -> None:
        """Pass a message of a member, or of this node's own agent, to the coordinator."""
        if isinstance(message, Paused) and message.paused:
            # A paused member is silent until its next message.
            self._silence_watch.forget(number)
        self.handle(job_events.MessageReceived(number, message, now))

    def _answer(self, number: int, sent: float) -> None:
        """Answer a heartbeat, unless the job continues without that node."""
        if not self.coordinator.is_lost(number):
            # The time after the heartbeat has come: the lease of the member's workers starts no later.
            now = self._loop.clock()
            self.coordinator.grants.answer(number, now)
            self._send((number,), HeartbeatAnswer(sent, now))

    # Closing connections.

    def _drop(self, connection: Connection, now: float, refused: str = "") -> None:
        """Close a connection and let the coordinator know; it prints ``refused`` as the reason."""
        was_unauthenticated = connection.number in self._unauthenticated
        if not self._close(connection):
            return
        why = f"{connection.peer}: {refused}" if refused else ""
        if was_unauthenticated:
            self.handle(job_events.CallerDisconnected(why, now))
            return
        end = connection.channel.end
        # A reset says nothing about the workers: see ``policy/leases.py``.
        has_ended = end is ChannelEnd.CLOSED
        is_unreachable = end is ChannelEnd.UNREACHABLE
        gone = job_events.MemberDisconnected(connection.number, why, now, has_ended, is_unreachable)
        self.handle(gone)
        if not self.coordinator.is_lost(connection.number):
            # This node was not in the world and has no workers.
            self.coordinator.grants.has_ended(connection.number)

    def _close(self, connection: Connection) -> bool:
        """Close a connection; return whether it was open."""
        number = connection.number
        self._closing.pop(number, None)
        self._unauthenticated.pop(number, None)
        self._silence_watch.forget(number)
        if self._connections.pop(number, None) is None:
            return False
        connection.channel.close()
        return True

    def _close_later(self, connection: Connection) -> None:
        """Have ``_close_due`` close a connection once all messages are sent."""
        connection.is_closing = True
        connection.deadline = 0.0
        self._closing[connection.number] = connection

    def _close_due(self, now: float) -> None:
        for connection in [*self._closing.values()]:
            if not connection.deadline:
                connection.deadline = now + SECONDS_TO_READ_A_REFUSAL
            if not connection.channel.wants_write or now >= connection.deadline:
                self._drop(connection, now)
        while self._unauthenticated and next(iter(self._unauthenticated.values())).deadline <= now:
            self._refuse_oldest(f"it sent nothing for {SECONDS_TO_SEND_HELLO:g} s", now)


def open_ports(node: JoiningNode) -> tuple[RendezvousPort, MasterPort | None]:
    """Return the rendezvous port, and the workers' port if that is a different one.

    Raises:
        PortInUse: no port is free for the coordinator.
        RendezvousError: another program listens on the port that was set for the workers.
        MachineError: this user may not listen at a port that was set.

    """
    settings = node.settings
    # If node 0's address is a loopback one, no other machine needs to reach the coordinator.
    only_at = loopback_address(settings.host.value)
    is_task = settings.job.tasks is not None
    joining = open_rendezvous_port(settings.ports, node.hello.host, only_at, is_task=is_task)
    if not settings.keeps_rendezvous_port:
        return joining, None
    try:
        return joining, MasterPort(settings.workers_port)
    except LauncherError:
        joining.release()
        raise
