"""The coordinator's sockets: makes events of what happens on them, and performs its actions."""

import errno
import select
import socket
from collections.abc import Callable
from itertools import islice
from typing import assert_never

import msgspec

from clusterrun.network.addresses import is_machines_own, plain_address
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
from clusterrun.policy import job_events
from clusterrun.policy.event_source import NEVER
from clusterrun.policy.heartbeat import SilenceWatch
from clusterrun.policy.job import Job, Over, Running
from clusterrun.policy.job_events import Action, CoordinatorEvent
from clusterrun.policy.members import OWN
from clusterrun.policy.messages import (
    FromMember,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    Paused,
)
from clusterrun.policy.terms import Terms
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port
from clusterrun.rendezvous.ports.joining_port import JoiningPort
from clusterrun.rendezvous.wire.connections import Connections, allow_connections

SECONDS_TO_SEND_HELLO = 10.0
SECONDS_TO_READ_A_REFUSAL = 2.0
SECONDS_WITHOUT_DESCRIPTORS = 1.0

LOOKS_AT_THE_LEASE_IN_AN_INTERVAL = 4

MOST_STRANGERS = 256
"""Connections without a ``Hello`` at the same time, beyond one for each node."""


MOST_STRANGERS_IN_A_TURN = 16
"""That are accepted, and as many that are served: a flood of them keeps neither members nor signals
waiting."""


class CoordinatorServer:
    """Runs the coordinator in the loop of node 0's agent: one descriptor, and it never blocks."""

    def __init__(  # noqa: PLR0913 - what node 0 has found out
        self,
        joining_port: JoiningPort,
        terms: Terms,
        hello: Hello,
        hooks: AgentHooks,
        now: float,
        *,
        token: bytes,
        chosen: HeldPort | None = None,
        succeeds: Job | None = None,
    ) -> None:
        """Begin to gather the nodes of ``terms``; ``succeeds``: those of a lost coordinator.

        Takes over ``joining_port``, and the port ``chosen`` for the workers, if that is another one.

        Raises:
            MachineError: the limit of open files is too low for a connection to each node.

        """
        allow_connections(terms.nodes, 2 * MOST_STRANGERS)
        ours, self.own_end = socket.socketpair()
        """The connection of node 0's own agent, which is a member as any other."""
        self.reached_at = ""
        """This node's address that the first member from another machine connected to."""
        self._joining_port = joining_port
        self._chosen = chosen
        self._token = token
        self._notice = hooks.notice
        self._interfaces = hooks.interfaces
        master_port = (chosen or joining_port).number
        self._job = succeeds or Job(terms, hello, master_port, now, has_token=bool(token))
        self._connections = Connections()
        self._connections.epoll.register(joining_port, select.EPOLLIN)
        self._connections.add(OWN, Channel(FROM_MEMBERS, ours), "this node")
        self._last_number = OWN
        self._callers: dict[int, float] = {}
        self._closing: dict[int, float] = {}
        self._silence_watch = SilenceWatch(terms.patience, now)
        self._accept_again = NEVER
        self._renew_lease = hooks.renew_lease
        self._lease_ends = NEVER
        self._look_at_lease = now

    def fileno(self) -> int:
        return self._connections.epoll.fileno()

    @property
    def due(self) -> float:
        """When to call ``turn`` even if the descriptor is not readable."""
        first_caller = next(iter(self._callers.values()), NEVER)
        first_closing = min(self._closing.values(), default=NEVER)
        times = (first_caller, first_closing, self._accept_again, self._silence_watch.due)
        return min(self._job.due, *times)

    @property
    def all_are_informed(self) -> bool:
        """Whether all nodes know that the job cannot begin."""
        return self._job.all_are_informed and self._connections.all_sent

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        ready = self._connections.ready()
        strangers = [number for number in ready if number in self._callers]
        for number in ready:
            if number not in self._callers:
                self._serve(number, now)
        # Before a stranger is admitted, so that the last node does not hide one too many.
        self._accept_callers(now)
        for number in strangers[:MOST_STRANGERS_IN_A_TURN]:
            self._serve(number, now)
        # All that was sent has been read by now: other members are silent.
        for number in self._silence_watch.lost(now):
            self._happens(job_events.MemberSilent(number, now))
        if now >= self._job.due:
            self._happens(job_events.TimePassed(now))
        self._close_what_is_due(now)

    def abandon(self, why: str, now: float, hint: str = "") -> None:
        """Tell all members that the job does not begin."""
        self._happens(job_events.Abandoned(why, now, hint))

    def finish(self, seconds: float, clock: Callable[[], float]) -> None:
        """Let members read what was sent last, for at most ``seconds``, and close everything."""
        deadline = clock() + seconds
        for number in (OWN, *self._callers):
            self._connections.drop(number)
        self._callers.clear()
        # Members close their connections once they have read it.
        while isinstance(self._job.state, Over) and self._connections and clock() < deadline:
            self._connections.epoll.poll(max(0.0, deadline - clock()))
            self.turn(clock())
        self.close()

    def close(self) -> None:
        """Close everything; the port is free then."""
        for number in self._connections.numbers:
            self._connections.drop(number)
        self._joining_port.release()
        if self._chosen is not None:
            self._chosen.release()
        self._connections.epoll.close()

    def _accept_callers(self, now: float) -> None:
        self._accept_again = NEVER
        try:
            for sock, where in islice(self._joining_port.accepted(), MOST_STRANGERS_IN_A_TURN):
                self._accept_caller(sock, plain_address(where), now)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # The caller that has been silent longest makes room; without any, time may.
            self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
            self._refuse_oldest_caller("too many connections", now)

    def _accept_caller(self, sock: socket.socket, peer: str, now: float) -> None:
        if len(self._callers) >= MOST_STRANGERS + self._job.size:
            self._refuse_oldest_caller("too many connections", now)
        self._last_number += 1
        own_end = packed_address(sock.getsockname())
        handshake = coordinator_handshake(self._token, own_end, self._is_own)
        connection = Channel(FROM_MEMBERS, sock, handshake)
        connection.longest = LONGEST_HELLO
        self._connections.add(self._last_number, connection, peer)
        self._callers[self._last_number] = now + SECONDS_TO_SEND_HELLO
        self._happens(job_events.CallerConnected(now))

    def _is_own(self, address: str) -> bool:
        return is_machines_own(address, self._interfaces())

    def _serve(self, number: int, now: float) -> None:
        """Send what is queued for a connection, and read what it has sent."""
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            for message in connection.receive():
                self._take(number, message, now)
        except HandshakeFailed as failure:
            self._refuse(number, describe_caller_fault(failure), now)
        except BadFrame as error:
            self._refuse(number, f"it {error}", now)
        else:
            self._watch_or_drop(number, connection, now)

    def _watch_or_drop(self, number: int, connection: Channel[FromMember], now: float) -> None:
        if connection.end is None:
            connection.watch(self._connections.epoll)
        elif connection.has_unfinished_input and number in self._callers:
            self._refuse(number, "it closed the connection in the middle of a message", now)
        else:
            self._drop(number, now)

    def _take(self, number: int, message: FromMember, now: float) -> None:
        if number not in self._callers and number != OWN:
            self._silence_watch.received(number, now)
        match message:
            case _ if number in self._closing:
                return
            case Hello() if number in self._callers and self._is_closed(number):
                # The same agent calls again by now.
                self._closing[number] = NEVER
            case Hello() if number in self._callers:
                self._make_member(number, now)
                peer = self._connections.peer(number)
                self._happens(job_events.HelloReceived(number, peer, message, now))
            case Hello():
                raise BadFrame("sent a second Hello")
            case _ if number in self._callers:
                raise BadFrame("sent another message before its Hello")
            case Heartbeat():
                self._answer(number, message, now)
            case Paused(paused):
                if paused:
                    # Silent on purpose, until its next message.
                    self._silence_watch.forget(number)
                self._job.majority.confirmed(number, now)
                self._happens(job_events.MessageReceived(number, message, now))
                self._renew_own_lease(now)
            case _:
                self._happens(job_events.MessageReceived(number, message, now))

    def _answer(self, number: int, heartbeat: Heartbeat, now: float) -> None:
        left = 0.0
        if self._job.terms.reforming.lives_on:
            majority = self._job.majority
            majority.confirmed(number, min(heartbeat.seen, now))
            if now >= self._look_at_lease:
                self._renew_own_lease(now)
            # The next attempt waits for the leases that lost ones had.
            if not self._job.is_lost(number):
                left = majority.give(number, now, self._lease_ends)
        answer = HeartbeatAnswer(now, heartbeat.at, left)
        self._connections.send((number,), msgspec.msgpack.encode(answer))

    def _renew_own_lease(self, now: float) -> None:
        """Let this node's workers run for as long as enough has been confirmed."""
        terms = self._job.terms
        if not terms.reforming.lives_on:
            return
        self._look_at_lease = now + terms.rhythm.interval / LOOKS_AT_THE_LEASE_IN_AN_INTERVAL
        self._lease_ends = ends = self._job.majority.lease_ends
        # If it is over, the fork server knows: its clock rests while the whole node is stopped.
        if ends > now:
            self._renew_lease(None if ends == NEVER else ends - now)

    def _is_closed(self, number: int) -> bool:
        connection = self._connections.get(number)
        return connection is None or connection.is_closed_by_peer()

    def _make_member(self, number: int, now: float) -> None:
        del self._callers[number]
        connection = self._connections.get(number)
        if connection is None:
            return
        connection.longest = LONGEST_FRAME
        connection.give_up_after(self._job.terms.patience.timeout)
        self._silence_watch.received(number, now)
        self._job.majority.confirmed(number, now)
        # As the answer to a heartbeat: see ``JoiningMember``.
        self._job.majority.give(number, now, self._lease_ends)
        if not self.reached_at and connection.local_address != self._connections.peer(number):
            self.reached_at = connection.local_address

    def _happens(self, event: CoordinatorEvent) -> None:
        before = self._job.state
        actions = self._job.happens(event)
        if isinstance(self._job.state, Running) and self._job.state is not before:
            # No worker starts without it.
            self._renew_own_lease(event.at)
        for action in actions:
            self._perform(action, event.at)

    def _perform(self, action: Action, at: float) -> None:
        match action:
            case job_events.Send(numbers, message):
                self._connections.send(numbers, msgspec.msgpack.encode(message))
            case job_events.Disconnect(numbers):
                # Once all that was sent has left: see ``_close_what_is_due``.
                self._closing.update(dict.fromkeys(numbers, NEVER))
            case job_events.StopListening():
                self._connections.epoll.unregister(self._joining_port)
                self._joining_port.close()
            case job_events.PreparePort():
                self._happens(job_events.PortReady(self._fresh_port(), at))
            case job_events.PrintOnNodeZero(text):
                self._notice(text)
            case _:
                assert_never(action)

    def _fresh_port(self) -> int:
        """Return where the next attempt's workers meet; a given port is held for the whole job."""
        if self._chosen is None or self._chosen.given:
            return self._job.port
        last, self._chosen = self._chosen, hold_free_port()
        # Only now, so that the new one differs.
        last.release()
        return self._chosen.number

    def _refuse(self, number: int, why: str, now: float) -> None:
        """Close a connection, and have the reason printed."""
        self._drop(number, now, f"{self._connections.peer(number)}: {why}")

    def _drop(self, number: int, now: float, refused: str = "") -> None:
        """Close a connection, and let the coordinator know."""
        self._closing.pop(number, None)
        self._silence_watch.forget(number)
        connection = self._connections.get(number)
        if connection is None:
            return
        self._connections.drop(number)
        if self._callers.pop(number, None) is not None:
            self._happens(job_events.CallerGone(refused, now))
        elif number != OWN:
            gone = job_events.MemberGone(
                number,
                refused,
                now,
                unreachable=connection.end is How.UNREACHABLE,
                dropped=self._may_live(connection),
            )
            self._happens(gone)
            self._renew_own_lease(now)

    def _may_live(self, connection: Channel[FromMember]) -> bool:
        """Return whether an agent whose connection has ended is not known to have ended itself."""
        if connection.end is How.RESET:
            # It may have left the connection behind, and follow a successor.
            return self._job.terms.reforming.lives_on
        return connection.end is not How.CLOSED

    def _close_what_is_due(self, now: float) -> None:
        """Close connections that are to be closed, and those without a ``Hello`` for too long."""
        for number, deadline in tuple(self._closing.items()):
            connection = self._connections.get(number)
            if connection is None or not connection.wants_write or now >= deadline:
                self._drop(number, now)
            elif deadline == NEVER:
                self._closing[number] = now + SECONDS_TO_READ_A_REFUSAL
        while self._callers and next(iter(self._callers.values())) <= now:
            why = f"it sent nothing for {SECONDS_TO_SEND_HELLO:g} s"
            self._refuse_oldest_caller(why, now)

    def _refuse_oldest_caller(self, why: str, now: float) -> None:
        first = next(iter(self._callers), None)
        if first is not None:
            self._refuse(first, why, now)
