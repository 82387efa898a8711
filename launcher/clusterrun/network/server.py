"""Node 0: the agent that runs the coordinator.

What happens on the connections of the other agents becomes events of the coordinator. What that
decides is done here: for its own agent in memory, for the others by their connections.
"""

import errno
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

import msgspec
from msgspec import Struct

from clusterrun.errors import LauncherError, MachineError
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
from clusterrun.network.joining_port import JoiningPort, open_joining_port
from clusterrun.policy import job_events
from clusterrun.policy.coordinator import Coordinator, Over
from clusterrun.policy.events import Event
from clusterrun.policy.heartbeat import SilenceWatch
from clusterrun.policy.members import OWN
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
from clusterrun.policy.settings import NODE_ZERO_SILENCE_INTERVALS
from clusterrun.ports import MasterPort
from clusterrun.processes import raise_descriptor_limit

SECONDS_TO_SEND_HELLO = 10.0
SECONDS_TO_READ_A_REFUSAL = 2.0
SECONDS_WITHOUT_DESCRIPTORS = 1.0

SECONDS_TO_REFUSE_LATECOMERS = 0.7
"""Nodes that start a little later should learn why the job can't start, too."""

MAX_STRANGERS = 256
"""Connections without a ``Hello`` at the same time, beyond one for each node."""

MAX_ACCEPTED_IN_A_TURN = 16
"""A flood of them keeps neither members nor signals waiting."""

OTHER_DESCRIPTORS = 64
"""Open files that node 0 needs beside its connections."""


class Connection(Struct, eq=False):
    """One of them: a stranger's, until its ``Hello`` has come, then a member's."""

    number: int
    channel: Channel[FromMember]
    peer: str
    """The address of its other end."""
    deadline: float
    """When it is closed: a stranger's without a ``Hello``, or one that is closing."""
    serve: Ready[Event]
    is_member: bool = False
    is_closing: bool = False
    """It ends once all that was sent has left; what comes by it counts no more."""

    def watch(self, loop: Loop[Event]) -> None:
        rank = Priority.KNOWN if self.is_member else Priority.UNAUTHENTICATED
        self.channel.watch(loop, self.serve, rank)


class CoordinatorServer:
    """Runs the coordinator, in the loop of its agent, whose membership needs no connection."""

    def __init__(  # noqa: PLR0913 - what the node has found out
        self,
        node: JoiningNode,
        loop: Loop[Event],
        coordinator: Coordinator,
        event: Callable[[FromCoordinator, float], Iterable[Event]],
        *,
        port: JoiningPort,
        workers: MasterPort | None = None,
    ) -> None:
        """Listen.

        Args:
            node: this one.
            loop: the agent's.
            coordinator: the policy.
            event: returns what a message to this node's own agent means for it.
            port: where the others join; taken over.
            workers: where the workers meet; taken over. None: at ``port``, once all have joined.

        Raises:
            MachineError: the limit of open files is too low for a connection to each node.

        """
        settings = coordinator.settings
        allow_connections(settings.nodes, 2 * MAX_STRANGERS)
        self.coordinator = coordinator
        self.reached_at = ""
        """This node's address that the first member from another machine connected to."""
        self._node = node
        self._loop = loop
        self._terms = settings
        self._event = event
        self._port = port
        self._workers = workers
        self._mail: list[FromCoordinator] = []
        """What the coordinator has sent to its own agent."""
        self._refused: LauncherError | None = None
        self._refused_until = NEVER
        self._is_over = False
        self._duplicate_check: DuplicateCheck | None = None
        self._connections: dict[int, Connection] = {}
        self._strangers: dict[int, Connection] = {}
        """In the order of their deadlines."""
        self._closing: dict[int, Connection] = {}
        self._last_number = OWN
        now = loop.clock()
        self._silence_watch = SilenceWatch(settings.rhythm, now)
        self._accept_again = NEVER
        self._last_turn = now
        loop.time(self)
        self._listen()

    def check_for_duplicate(self) -> None:
        """Find out whether another machine at node 0's address is node 0, too."""
        self._duplicate_check = DuplicateCheck(self._node, self._loop, self._look)

    @property
    def master_addr(self) -> str:
        """MASTER_ADDR of this node's workers in the first attempt."""
        check = self._duplicate_check
        return self._terms.host.value if check is None else check.master_addr

    @property
    def due(self) -> float:
        first = next(iter(self._strangers.values()), None)
        closing = min((each.deadline for each in self._closing.values()), default=NEVER)
        stranger = NEVER if first is None else first.deadline
        check = NEVER if self._duplicate_check is None else self._duplicate_check.due
        turn = self._last_turn + self._terms.rhythm.timeout
        times = (stranger, closing, check, turn, self._accept_again, self._refused_until)
        return min(self.coordinator.due, self._silence_watch.due, *times)

    def events(self, now: float) -> Iterable[Event]:
        """Do what is due: all that members had sent was read, so who seems silent is.

        Raises:
            RendezvousError: the nodes contradict each other, or did not all join in time.

        """
        self._note_stop(now)
        if now >= self._accept_again:
            self._listen()
        for number in self._silence_watch.lost(now):
            self.handle(job_events.MemberSilent(number, now))
        if now >= self.coordinator.due:
            self.handle(job_events.TimePassed(now))
        self._close_what_is_due(now)
        return self._look(now)

    def send(self, message: AgentMessage, now: float) -> Iterable[Event]:
        """Give the coordinator a message of its own agent; return what it answers at once."""
        self._hand_over(OWN, message, now)
        return self._own_events(now)

    def abandon(self, why: str, now: float, hint: str = "") -> None:
        """Tell all members that the job does not begin."""
        self.handle(job_events.JoinAbandoned(why, now, hint))

    def handle(self, event: job_events.CoordinatorEvent) -> None:
        """Take an event of the job."""
        self._perform(self.coordinator.handle(event), event.at)

    def finish(self, seconds: float) -> None:
        """Let members read what was sent last, for at most ``seconds``, and close everything."""
        self._is_over = True
        deadline = self._loop.clock() + seconds
        self._end_check()
        for stranger in [*self._strangers.values()]:
            self._close(stranger)
        # Members close their connections once they have read it.
        while isinstance(self.coordinator.state, Over) and self._connections:
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

    # What the coordinator decides.

    def _perform(self, actions: Iterable[job_events.Action], at: float) -> None:
        for action in actions:
            match action:
                case job_events.Send(connections, message):
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
                    self._node.outside.notice(text)
                case _:
                    assert_never(action)

    def _send(self, connections: Iterable[int], message: FromCoordinator) -> None:
        body = msgspec.msgpack.encode(message)
        for number in connections:
            if number == OWN:
                self._mail.append(message)
            elif connection := self._connections.get(number):
                connection.channel.send_body(body)
                if connection.channel.wants_write:
                    connection.watch(self._loop)

    def _next_port(self) -> int:
        """Return where the workers of the next attempt meet: a port that was given is kept."""
        workers = self._workers
        return self.coordinator.port if workers is None or workers.is_chosen else workers.next()

    # Its own agent.

    def _own_events(self, now: float) -> Iterable[Event]:
        """Return what the coordinator has sent to its own agent, as events; first others have theirs."""
        events = list[Event]()
        mail, self._mail = self._mail, []
        if self._is_over:
            return events
        for message in mail:
            match message:
                case Refused(refusal):
                    self._refused = error_of(message)
                    self._refused_until = now + SECONDS_TO_REFUSE_LATECOMERS
                    if refusal is Refusal.CHECK_FAILED:
                        # The others may run their checks, for as long as they may.
                        self._refused_until = now + self._terms.job.join.rdzv_timeout
                case _:
                    events += self._event(message, now)
                    if isinstance(message, WorldFormed):
                        self._end_check()
        if self._refused and (self._all_are_informed or now >= self._refused_until):
            raise self._refused
        return events

    @property
    def _all_are_informed(self) -> bool:
        """Whether all nodes know that the job cannot begin."""
        waits = any(each.channel.wants_write for each in self._connections.values())
        return self.coordinator.all_are_informed and not waits

    def _look(self, now: float) -> Iterable[Event]:
        """Look for another node 0, as long as it matters."""
        check = self._duplicate_check
        if check is not None:
            check.turn(now)
            if check.failure is not None and self._refused is None:
                self.abandon(check.failure.message, now, check.failure.hint)
        return self._own_events(now)

    def _end_check(self) -> None:
        if self._duplicate_check is not None:
            self._duplicate_check.close()
            self._duplicate_check = None

    # Strangers.

    def _listen(self) -> None:
        self._accept_again = NEVER
        for descriptor in self._port.descriptors:
            self._loop.watch(descriptor, self._accept, Priority.LISTENERS)

    def _forget_port(self) -> None:
        for descriptor in self._port.descriptors:
            self._loop.forget(descriptor)

    def _accept(self, now: float) -> Iterable[Event]:
        try:
            for _, (sock, where) in zip(
                range(MAX_ACCEPTED_IN_A_TURN), self._port.accepted(), strict=False
            ):
                self._accept_one(sock, plain_address(where), now)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # The stranger that has been silent longest makes room; without any, time may.
            self._forget_port()
            self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
            self._refuse_oldest("too many connections", now)
        return self._own_events(now)

    def _accept_one(self, sock: socket.socket, peer: str, now: float) -> None:
        if len(self._strangers) >= MAX_STRANGERS + self.coordinator.size:
            self._refuse_oldest("too many connections", now)
        own_end = packed_address(sock.getsockname())
        handshake = coordinator_handshake(self._node.token, own_end, self._is_own)
        channel = Channel(FROM_MEMBERS, sock, handshake)
        channel.longest = MAX_HELLO_BYTES
        self._last_number = number = self._last_number + 1
        serve, deadline = partial(self._serve, number), now + SECONDS_TO_SEND_HELLO
        connection = Connection(number, channel, peer, deadline, serve)
        self._connections[number] = self._strangers[number] = connection
        connection.watch(self._loop)
        self.handle(job_events.CallerConnected(now))

    def _is_own(self, address: str) -> bool:
        return is_own(address, self._node.outside.interfaces())

    def _refuse_oldest(self, why: str, now: float) -> None:
        first = next(iter(self._strangers.values()), None)
        if first is not None:
            self._drop(first, now, why)

    def _admit(self, connection: Connection, hello: Hello, now: float) -> None:
        if connection.channel.is_closed_by_peer():
            # The same agent calls again by now.
            self._close_later(connection)
            return
        del self._strangers[connection.number]
        connection.is_member = True
        connection.deadline = NEVER
        connection.channel.longest = MAX_FRAME_BYTES
        connection.channel.give_up_after(self._terms.member_silence)
        self._silence_watch.received(connection.number, now)
        self._answer(connection.number, hello.at)
        if not self.reached_at and connection.channel.local_address != connection.peer:
            self.reached_at = connection.channel.local_address
        self.handle(job_events.HelloReceived(connection.number, connection.peer, hello, now))

    # Members.

    def _note_stop(self, now: float) -> None:
        """Let the coordinator know if this process was stopped for so long that others give it up."""
        seconds, self._last_turn = now - self._last_turn, now
        # Others may have heard it an interval before its last turn.
        if seconds > self._terms.rhythm.after(NODE_ZERO_SILENCE_INTERVALS - 1.0):
            self.handle(job_events.NodeZeroWasStopped(seconds, now))

    def _serve(self, number: int, now: float) -> Iterable[Event]:
        """Send what is queued for a connection, and read what it has sent."""
        self._note_stop(now)
        connection = self._connections.get(number)
        if connection is None:
            return ()
        channel = connection.channel
        try:
            for message in channel.receive():
                self._take(connection, message, now)
        except BadFrame as error:
            self._drop(connection, now, f"it {error}")
        if channel.end is None and (channel.wants_write or not connection.is_closing):
            connection.watch(self._loop)
        elif channel.end and channel.has_unfinished_input and not connection.is_member:
            self._drop(connection, now, "it closed the connection in the middle of a message")
        else:
            self._drop(connection, now)
        return self._own_events(now)

    def _take(self, connection: Connection, message: FromMember, now: float) -> None:
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
                self._hand_over(number, message, now)

    def _hand_over(self, number: int, message: AgentMessage, now: float) -> None:
        """Give the coordinator a message of a member, or of the agent that runs the coordinator."""
        if isinstance(message, Paused) and message.paused:
            # Silent on purpose, until its next message.
            self._silence_watch.forget(number)
        self.handle(job_events.MessageReceived(number, message, now))

    def _answer(self, number: int, sent: float) -> None:
        """Answer a heartbeat, unless the job goes on without that node."""
        if not self.coordinator.is_lost(number):
            # Read now, after it has come: the lease of its workers begins no later.
            now = self._loop.clock()
            self.coordinator.grants.answer(number, now)
            self._send((number,), HeartbeatAnswer(sent, now))

    # Ends.

    def _drop(self, connection: Connection, now: float, refused: str = "") -> None:
        """Close a connection, and let the coordinator know; ``refused``: why, to be printed."""
        was_stranger = connection.number in self._strangers
        if not self._close(connection):
            return
        why = f"{connection.peer}: {refused}" if refused else ""
        if was_stranger:
            self.handle(job_events.CallerDisconnected(why, now))
            return
        end = connection.channel.end
        # A reset tells nothing of the workers: see ``policy/leases.py``.
        has_ended = end is ChannelEnd.CLOSED
        is_unreachable = end is ChannelEnd.UNREACHABLE
        gone = job_events.MemberDisconnected(connection.number, why, now, has_ended, is_unreachable)
        self.handle(gone)
        if not self.coordinator.is_lost(connection.number):
            # It had no place, and no workers.
            self.coordinator.grants.has_ended(connection.number)

    def _close(self, connection: Connection) -> bool:
        """Close a connection; return whether it was open."""
        number = connection.number
        self._closing.pop(number, None)
        self._strangers.pop(number, None)
        self._silence_watch.forget(number)
        if self._connections.pop(number, None) is None:
            return False
        connection.channel.close()
        return True

    def _close_later(self, connection: Connection) -> None:
        """Close a connection once all that was sent has left: see ``_close_what_is_due``."""
        connection.is_closing = True
        connection.deadline = 0.0
        self._closing[connection.number] = connection

    def _close_what_is_due(self, now: float) -> None:
        for connection in [*self._closing.values()]:
            if not connection.deadline:
                connection.deadline = now + SECONDS_TO_READ_A_REFUSAL
            if not connection.channel.wants_write or now >= connection.deadline:
                self._drop(connection, now)
        while self._strangers and next(iter(self._strangers.values())).deadline <= now:
            self._refuse_oldest(f"it sent nothing for {SECONDS_TO_SEND_HELLO:g} s", now)


def open_ports(node: JoiningNode) -> tuple[JoiningPort, MasterPort | None]:
    """Return where the other nodes join, and where the workers meet if that is another port.

    Raises:
        PortInUse: no port is free for the coordinator.
        RendezvousError: another program listens on the port that was given for the workers.
        MachineError: this user may not listen at a port that was given.

    """
    settings = node.settings
    # At a loopback address no other machine needs to reach the coordinator.
    only_at = loopback_address(settings.host.value)
    is_task = settings.job.tasks is not None
    joining = open_joining_port(settings.ports, node.hello.host, only_at, is_task=is_task)
    if not settings.keeps_rendezvous_port:
        return joining, None
    try:
        return joining, MasterPort(settings.workers_port)
    except LauncherError:
        joining.release()
        raise


def allow_connections(nodes: int, strangers: int) -> None:
    """Raise the limit of open files to a connection for each node, and for ``strangers`` if allowed.

    Raises:
        MachineError: the hard limit is too low for all nodes.

    """
    allowed, needed = raise_descriptor_limit(nodes + strangers), nodes + OTHER_DESCRIPTORS
    if allowed < needed:
        raise MachineError(
            f"node 0 keeps connections to {nodes} nodes and needs {needed} open files,"
            f" its hard limit is {allowed}",
            f"raise it on node 0: as root ulimit -n {needed}, for a service LimitNOFILE={needed}",
        )
