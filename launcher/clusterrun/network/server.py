"""Node 0's connections: what happens on them becomes events of the job, and its messages leave by them."""

import errno
import resource
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec
from msgspec import Struct

from clusterrun.errors import MachineError
from clusterrun.loop import NEVER, Loop, Rank
from clusterrun.network.addresses import Interfaces, is_own, plain_address
from clusterrun.network.channel import (
    FROM_MEMBERS,
    LONGEST_FRAME,
    LONGEST_HELLO,
    BadFrame,
    Channel,
    How,
)
from clusterrun.network.handshake import (
    HandshakeFailed,
    coordinator_handshake,
    describe_caller_fault,
    packed_address,
)
from clusterrun.network.joining_port import JoiningPort
from clusterrun.policy import job_events
from clusterrun.policy.coordinator import Coordinator
from clusterrun.policy.events import Event
from clusterrun.policy.heartbeat import SilenceWatch
from clusterrun.policy.job import Over, Running
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import (
    AgentMessage,
    FromCoordinator,
    FromMember,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Paused,
)

SECONDS_TO_SEND_HELLO = 10.0
SECONDS_TO_READ_A_REFUSAL = 2.0
SECONDS_WITHOUT_DESCRIPTORS = 1.0

LOOKS_AT_THE_LEASE_IN_AN_INTERVAL = 4

MOST_STRANGERS = 256
"""Connections without a ``Hello`` at the same time, beyond one for each node."""

MOST_ACCEPTED_IN_A_TURN = 16
"""A flood of them keeps neither members nor signals waiting."""

OTHER_DESCRIPTORS = 64
"""Open files that node 0 needs beside its connections."""


class Connection:
    """One of them: a stranger's, until its ``Hello`` has come, then a member's."""

    def __init__(
        self,
        number: int,
        channel: Channel[FromMember],
        peer: str,
        deadline: float,
        serve: Callable[["Connection", float], Iterable[Event]],
    ) -> None:
        self.number = number
        self.channel = channel
        self.peer = peer
        """The address of its other end."""
        self.is_member = False
        self.is_closing = False
        """It ends once all that was sent has left; what comes by it counts no more."""
        self.deadline = deadline
        """When it is closed: a stranger's without a ``Hello``, or one that is closing."""
        self._serve = serve

    def events(self, now: float) -> Iterable[Event]:
        return self._serve(self, now)

    def watch(self, loop: Loop[Event]) -> None:
        rank = Rank.KNOWN if self.is_member else Rank.STRANGERS
        loop.watch(self.channel.fileno(), self.events, rank, writes=self.channel.wants_write)


class Conditions(Struct, frozen=True):
    """What a server needs of its node."""

    token: bytes
    """b"" if the job has none."""
    renew_lease: Callable[[float | None], object]
    """Lets this node's workers run for so many seconds; None: as long as they want."""
    interfaces: Callable[[], Interfaces]
    mail: Callable[[float], Iterable[Event]]
    """Returns, as events, what the coordinator has sent to this node's own agent."""


class Server:
    """The coordinator's connections to other agents, in the loop of the agent that runs it."""

    def __init__(
        self,
        port: JoiningPort,
        coordinator: Coordinator,
        conditions: Conditions,
        loop: Loop[Event],
    ) -> None:
        """Take over the port, and listen.

        Raises:
            MachineError: the limit of open files is too low for a connection to each node.

        """
        terms = coordinator.job.terms
        allow_connections(terms.nodes, 2 * MOST_STRANGERS)
        self.reached_at = ""
        """This node's address that the first member from another machine connected to."""
        self._port = port
        self._coordinator = coordinator
        self._job = coordinator.job
        self._terms = terms
        self._conditions = conditions
        self._loop = loop
        self._connections: dict[int, Connection] = {}
        self._strangers: dict[int, Connection] = {}
        """In the order of their deadlines."""
        self._closing: dict[int, Connection] = {}
        self._last_number = OWN
        now = loop.clock()
        self._silence_watch = SilenceWatch(terms.patience, now)
        self._accept_again = NEVER
        self._lease_ends = NEVER
        self._look_at_lease = now
        coordinator.others = self
        loop.time(self)
        self._listen()

    @property
    def due(self) -> float:
        first = next(iter(self._strangers.values()), None)
        closing = min((each.deadline for each in self._closing.values()), default=NEVER)
        stranger = NEVER if first is None else first.deadline
        times = (stranger, closing, self._accept_again, self._silence_watch.due)
        return min(self._job.due, *times)

    @property
    def all_are_informed(self) -> bool:
        """Whether all nodes know that the job cannot begin."""
        waits = any(each.channel.wants_write for each in self._connections.values())
        return self._job.all_are_informed and not waits

    def events(self, now: float) -> Iterable[Event]:
        """Do what is due: all that members had sent was read, so who seems silent is."""
        if now >= self._accept_again:
            self._listen()
        for number in self._silence_watch.lost(now):
            self.happens(job_events.MemberSilent(number, now))
        if now >= self._job.due:
            self.happens(job_events.TimePassed(now))
        self._close_what_is_due(now)
        return self._conditions.mail(now)

    def happens(self, event: job_events.CoordinatorEvent) -> None:
        """Take an event of the job; no worker starts without a lease."""
        before = self._job.state
        self._coordinator.happens(event)
        if isinstance(self._job.state, Running) and self._job.state is not before:
            self._renew_own_lease(event.at)

    def finish(self, seconds: float) -> None:
        """Let members read what was sent last, for at most ``seconds``, and close everything."""
        deadline = self._loop.clock() + seconds
        for stranger in [*self._strangers.values()]:
            self._close(stranger)
        # Members close their connections once they have read it.
        while isinstance(self._job.state, Over) and self._connections:
            if self._loop.clock() >= deadline:
                break
            self._loop.turn(deadline)
        self.close()

    def close(self) -> None:
        """Close everything; the port is free then."""
        self._loop.untime(self)
        for connection in [*self._connections.values()]:
            self._close(connection)
        self._forget_port()
        self._port.release()

    # What the coordinator asks for.

    def send(self, connections: Iterable[int], message: FromCoordinator) -> None:
        body = msgspec.msgpack.encode(message)
        for number in connections:
            connection = self._connections.get(number)
            if connection is not None:
                connection.channel.send_body(body)
                if connection.channel.wants_write:
                    connection.watch(self._loop)

    def disconnect(self, connections: Iterable[int]) -> None:
        for number in connections:
            if connection := self._connections.get(number):
                self._close_later(connection)

    def stop_listening(self) -> None:
        self._forget_port()
        self._port.close()

    # Strangers.

    def _listen(self) -> None:
        self._accept_again = NEVER
        for descriptor in self._port.descriptors:
            self._loop.watch(descriptor, self._accept, Rank.LISTENERS)

    def _forget_port(self) -> None:
        for descriptor in self._port.descriptors:
            self._loop.forget(descriptor)

    def _accept(self, now: float) -> Iterable[Event]:
        try:
            for _, (sock, where) in zip(
                range(MOST_ACCEPTED_IN_A_TURN), self._port.accepted(), strict=False
            ):
                self._accept_one(sock, plain_address(where), now)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # The stranger that has been silent longest makes room; without any, time may.
            self._forget_port()
            self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
            self._refuse_oldest("too many connections", now)
        return self._conditions.mail(now)

    def _accept_one(self, sock: socket.socket, peer: str, now: float) -> None:
        if len(self._strangers) >= MOST_STRANGERS + self._job.size:
            self._refuse_oldest("too many connections", now)
        own_end = packed_address(sock.getsockname())
        handshake = coordinator_handshake(self._conditions.token, own_end, self._is_own)
        channel = Channel(FROM_MEMBERS, sock, handshake)
        channel.longest = LONGEST_HELLO
        self._last_number += 1
        deadline = now + SECONDS_TO_SEND_HELLO
        connection = Connection(self._last_number, channel, peer, deadline, self._serve)
        self._connections[connection.number] = self._strangers[connection.number] = connection
        connection.watch(self._loop)
        self.happens(job_events.CallerConnected(now))

    def _is_own(self, address: str) -> bool:
        return is_own(address, self._conditions.interfaces())

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
        connection.channel.longest = LONGEST_FRAME
        connection.channel.give_up_after(self._terms.patience.timeout)
        self._silence_watch.received(connection.number, now)
        self._job.majority.confirmed(connection.number, now)
        # As the answer to a heartbeat: see ``Membership``.
        self._job.majority.give(connection.number, now, self._lease_ends)
        if not self.reached_at and connection.channel.local_address != connection.peer:
            self.reached_at = connection.channel.local_address
        self.happens(job_events.HelloReceived(connection.number, connection.peer, hello, now))

    # Members.

    def _serve(self, connection: Connection, now: float) -> Iterable[Event]:
        """Send what is queued for a connection, and read what it has sent."""
        if connection.number not in self._connections:
            return ()
        channel = connection.channel
        try:
            for message in channel.receive():
                self._take(connection, message, now)
        except HandshakeFailed as failure:
            self._drop(connection, now, describe_caller_fault(failure))
        except BadFrame as error:
            self._drop(connection, now, f"it {error}")
        if channel.end is None and (channel.wants_write or not connection.is_closing):
            connection.watch(self._loop)
        elif channel.end and channel.has_unfinished_input and not connection.is_member:
            self._drop(connection, now, "it closed the connection in the middle of a message")
        else:
            self._drop(connection, now)
        return self._conditions.mail(now)

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
        match message:
            case Hello():
                raise BadFrame("sent a second Hello")
            case Heartbeat():
                self._answer(connection, message, now)
            case _:
                self.received(number, message, now)

    def received(self, number: int, message: AgentMessage, now: float) -> None:
        """Take a message of a member, or of the agent that runs the coordinator."""
        if isinstance(message, Paused):
            if message.paused:
                # Silent on purpose, until its next message.
                self._silence_watch.forget(number)
            self._job.majority.confirmed(number, now)
        self.happens(job_events.MessageReceived(number, message, now))
        if isinstance(message, Paused):
            self._renew_own_lease(now)

    def _answer(self, connection: Connection, heartbeat: Heartbeat, now: float) -> None:
        left, number = 0.0, connection.number
        if self._terms.reforming.lives_on:
            majority = self._job.majority
            majority.confirmed(number, min(heartbeat.seen, now))
            if now >= self._look_at_lease:
                self._renew_own_lease(now)
            # The next attempt waits for the leases that lost ones had.
            if not self._job.is_lost(number):
                left = majority.give(number, now, self._lease_ends)
        self.send((number,), HeartbeatAnswer(now, heartbeat.at, left))

    def _renew_own_lease(self, now: float) -> None:
        """Let this node's workers run for as long as enough has been confirmed."""
        if not self._terms.reforming.lives_on:
            return
        interval = self._terms.rhythm.interval
        self._look_at_lease = now + interval / LOOKS_AT_THE_LEASE_IN_AN_INTERVAL
        self._lease_ends = ends = self._job.majority.lease_ends
        # If it is over, the fork server knows: its clock rests while the whole node is stopped.
        if ends > now:
            self._conditions.renew_lease(None if ends == NEVER else ends - now)

    # Ends.

    def _drop(self, connection: Connection, now: float, refused: str = "") -> None:
        """Close a connection, and let the coordinator know; ``refused``: why, to be printed."""
        was_stranger = connection.number in self._strangers
        if not self._close(connection):
            return
        why = f"{connection.peer}: {refused}" if refused else ""
        if was_stranger:
            self.happens(job_events.CallerGone(why, now))
            return
        end = connection.channel.end
        # An agent may have left its connection behind, and follow a successor.
        has_ended = end is How.CLOSED or (end is How.RESET and not self._terms.reforming.lives_on)
        unreachable = end is How.UNREACHABLE
        gone = job_events.MemberGone(
            connection.number, why, now, unreachable=unreachable, dropped=not has_ended
        )
        self.happens(gone)
        self._renew_own_lease(now)

    def _close(self, connection: Connection) -> bool:
        """Close a connection; return whether it was open."""
        number = connection.number
        self._closing.pop(number, None)
        self._strangers.pop(number, None)
        self._silence_watch.forget(number)
        if self._connections.pop(number, None) is None:
            return False
        self._loop.forget(connection.channel.fileno())
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


def allow_connections(nodes: int, strangers: int) -> None:
    """Raise the limit of open files to a connection for each node, and for ``strangers`` if allowed.

    Raises:
        MachineError: the hard limit is too low for all nodes.

    """
    allowed, needed = allow_descriptors(nodes + strangers), nodes + OTHER_DESCRIPTORS
    if allowed < needed:
        raise MachineError(
            f"node 0 keeps connections to {nodes} nodes and needs {needed} open files,"
            f" its hard limit is {allowed}",
            f"raise it on node 0: as root ulimit -n {needed}, for a service LimitNOFILE={needed}",
        )


def allow_descriptors(count: int) -> int:
    """Raise this process's limit of open files to ``count``; return how many of these it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
