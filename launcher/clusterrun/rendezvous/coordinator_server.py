"""The coordinator's sockets: who knocks, who speaks, who is gone; ``coordinator`` decides."""

import errno
import os
import select
import socket
from collections.abc import Callable
from typing import assert_never

from clusterrun.coordination.actions import (
    Action,
    Disconnect,
    PreparePort,
    PrintNotice,
    Send,
    StopListening,
)
from clusterrun.coordination.coordinator import decide, due, opened
from clusterrun.coordination.events import (
    Abandoned,
    CallerConnected,
    CallerGone,
    Event,
    HelloReceived,
    MemberGone,
    MemberSilent,
    MessageReceived,
    PortReady,
    TimePassed,
)
from clusterrun.coordination.heartbeat import SilenceWatch
from clusterrun.coordination.members import OWN
from clusterrun.coordination.messages import (
    FromMember,
    Heartbeat,
    Hello,
    Suspension,
)
from clusterrun.coordination.state import NEVER, Phase, Terms
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.names.addresses import plain_address
from clusterrun.rendezvous.ports.held_port import HeldPort, hold_free_port
from clusterrun.rendezvous.ports.joining_port import JoiningPort
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.connections import Connections, allow_connections
from clusterrun.rendezvous.wire.frames import (
    FROM_MEMBERS,
    HEARTBEAT_FRAME,
    LONGEST_HELLO,
    MAXIMUM_FRAME,
    BadFrame,
    framed,
)
from clusterrun.rendezvous.wire.handshake import (
    NONCE_BYTES,
    HandshakeFailed,
    coordinator_handshake,
    describe_caller_fault,
)

SECONDS_TO_INTRODUCE_ONESELF = 10.0
SECONDS_TO_HEAR_A_REFUSAL = 2.0
SECONDS_WITHOUT_DESCRIPTORS = 1.0

MOST_STRANGERS = 256
"""Connections, beyond one for each node, that may be silent at the same time."""


class CoordinatorServer:
    """Runs the coordinator on node 0, in its agent's loop: one descriptor, never blocking."""

    def __init__(  # noqa: PLR0913 - what node 0 has found out
        self,
        door: JoiningPort,
        terms: Terms,
        token: bytes,
        hooks: AgentHooks,
        now: float,
        *,
        chosen: HeldPort | None = None,
    ) -> None:
        """Begin to gather the nodes of ``terms``.

        Takes over ``door``, and the port that was ``chosen`` for the workers, if that is another.

        Raises:
            MachineError: this process may not have a connection to each of them.

        """
        allow_connections(terms.nodes, 2 * MOST_STRANGERS)
        ours, self.own_end = socket.socketpair()
        """The other end is node 0's own, as any member's."""
        self.reached_at = ""
        """The address of ours that the first member from another machine has reached."""
        self._door = door
        self._chosen = chosen
        self._token = token
        self._notice = hooks.notice
        self._state = opened(terms, now)
        self._connections = Connections()
        self._connections.epoll.register(door, select.EPOLLIN)
        self._connections.add(OWN, Connection(ours, FROM_MEMBERS), "this node")
        self._last_number = OWN
        self._callers: dict[int, float] = {}
        self._leaving: dict[int, float] = {}
        self._silence_watch = SilenceWatch(terms.rhythm, now)
        self._accept_again = NEVER

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``turn`` has something to do."""
        return self._connections.epoll.fileno()

    @property
    def due(self) -> float:
        """When ``turn`` is to be called even if nothing happens."""
        first_caller = next(iter(self._callers.values()), NEVER)
        first_leaving = min(self._leaving.values(), default=NEVER)
        times = (first_caller, first_leaving, self._accept_again, self._silence_watch.due)
        return min(due(self._state), *times)

    @property
    def has_told_everybody(self) -> bool:
        """Whether all nodes that there should be know that they can't be one job."""
        return self._state.informed >= self._state.terms.nodes and self._connections.all_sent

    def turn(self, now: float) -> None:
        """Do all that can be done now."""
        # Newcomers first, so that the last node to be let in does not hide one too many.
        self._let_callers_in(now)
        for number in self._connections.ready():
            self._serve(number, now)
        # What has come is heard by now: whoever is silent still, is silent.
        for number in self._silence_watch.lost(now):
            self._happens(MemberSilent(number, now))
        if now >= due(self._state):
            self._happens(TimePassed(now))
        self._see_off(now)

    def abandon(self, why: str, now: float, hint: str = "") -> None:
        """Tell all who have come that nothing comes of it."""
        self._happens(Abandoned(why, now, hint))

    def finish(self, seconds: float, clock: Callable[[], float]) -> None:
        """Let members hear the last word, for at most ``seconds``, and close everything."""
        deadline = clock() + seconds
        for number in (OWN, *self._callers):
            self._connections.drop(number)
        self._callers.clear()
        # Members hang up once they have heard it.
        while self._state.phase is Phase.OVER and self._connections and clock() < deadline:
            self._connections.epoll.poll(max(0.0, deadline - clock()))
            self.turn(clock())
        self.close()

    def close(self) -> None:
        """Close everything: members see end of file, and the port is free."""
        for number in self._connections.numbers:
            self._connections.drop(number)
        self._door.release()
        if self._chosen is not None:
            self._chosen.release()
        self._connections.epoll.close()

    def _let_callers_in(self, now: float) -> None:
        self._accept_again = NEVER
        try:
            for sock, where in self._door.accepted():
                self._let_caller_in(sock, plain_address(where), now)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            # Who has been silent longest makes room; where nobody is, time may.
            self._accept_again = now + SECONDS_WITHOUT_DESCRIPTORS
            self._send_first_caller_away("too many connections", now)

    def _let_caller_in(self, sock: socket.socket, peer: str, now: float) -> None:
        if len(self._callers) >= MOST_STRANGERS + self._state.terms.nodes:
            self._send_first_caller_away("too many connections", now)
        self._last_number += 1
        handshake = coordinator_handshake(self._token, os.urandom(NONCE_BYTES))
        connection = Connection(sock, FROM_MEMBERS, handshake)
        connection.longest = LONGEST_HELLO
        self._connections.add(self._last_number, connection, peer)
        self._callers[self._last_number] = now + SECONDS_TO_INTRODUCE_ONESELF
        self._happens(CallerConnected(now))

    def _serve(self, number: int, now: float) -> None:
        """Send what waits for a connection, and hear what it has to say."""
        connection = self._connections.get(number)
        if connection is None:
            return
        try:
            connection.flush()
            for message in connection.receive():
                self._hear(number, message, now)
        except HandshakeFailed as failure:
            self._refuse(number, describe_caller_fault(failure), now)
        except BadFrame as error:
            self._refuse(number, f"it {error}", now)
        else:
            self._go_on(number, connection, now)

    def _go_on(self, number: int, connection: Connection[FromMember], now: float) -> None:
        if not connection.closed:
            self._connections.watch(number)
        elif connection.has_unfinished_input and number in self._callers:
            self._refuse(number, "it closed the connection in the middle of a message", now)
        else:
            self._lose(number, now)

    def _hear(self, number: int, message: FromMember, now: float) -> None:
        if number not in self._callers and number != OWN:
            self._silence_watch.received(number, now)
        match message:
            case _ if number in self._leaving:
                return
            case Hello() if number in self._callers and self._has_hung_up(number):
                # It calls anew by now, and is one node.
                self._leaving[number] = NEVER
            case Hello() if number in self._callers:
                self._now_known(number, now)
                peer = self._connections.peer(number)
                self._happens(HelloReceived(number, peer, message, now))
            case Hello():
                raise BadFrame("sent a second Hello")
            case _ if number in self._callers:
                raise BadFrame("sent another message before its Hello")
            case Heartbeat():
                self._connections.send((number,), HEARTBEAT_FRAME)
            case Suspension(suspended):
                if suspended:
                    # Silent on purpose, until it is heard again.
                    self._silence_watch.forget(number)
                self._happens(MessageReceived(number, message, now))
            case _:
                self._happens(MessageReceived(number, message, now))

    def _has_hung_up(self, number: int) -> bool:
        connection = self._connections.get(number)
        return connection is None or connection.has_hung_up()

    def _now_known(self, number: int, now: float) -> None:
        del self._callers[number]
        connection = self._connections.get(number)
        if connection is None:
            return
        connection.longest = MAXIMUM_FRAME
        connection.give_up_after(self._state.terms.rhythm.timeout)
        self._silence_watch.received(number, now)
        if connection.local_address != self._connections.peer(number):
            self.reached_at = self.reached_at or connection.local_address

    def _happens(self, event: Event) -> None:
        for action in decide(self._state, event):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Send(numbers, message):
                self._connections.send(numbers, framed(message))
            case Disconnect(numbers):
                # As soon as what was sent is on its way: in ``_see_off``.
                self._leaving.update(dict.fromkeys(numbers, NEVER))
            case StopListening():
                self._connections.epoll.unregister(self._door)
                self._door.close()
            case PreparePort():
                self._happens(PortReady(self._fresh_port()))
            case PrintNotice(text):
                self._notice(text)
            case _:
                assert_never(action)

    def _fresh_port(self) -> int:
        """Return where the next attempt's workers meet; a given port is ours for the whole job."""
        if self._chosen is None or self._chosen.given:
            return self._state.terms.master_port
        last, self._chosen = self._chosen, hold_free_port()
        # Only now, which is how the new one is another.
        last.release()
        return self._chosen.number

    def _refuse(self, number: int, why: str, now: float) -> None:
        """Close the connection to somebody who does not behave."""
        self._lose(number, now, f"{self._connections.peer(number)}: {why}")

    def _lose(self, number: int, now: float, refused: str = "") -> None:
        """Take note that a connection is gone."""
        self._leaving.pop(number, None)
        self._silence_watch.forget(number)
        connection = self._connections.get(number)
        if connection is None:
            return
        self._connections.drop(number)
        if self._callers.pop(number, None) is not None:
            self._happens(CallerGone(refused, now))
        elif number != OWN:
            self._happens(MemberGone(number, refused, now, connection.unreachable))

    def _see_off(self, now: float) -> None:
        """Hang up where that is due, and where nobody has said who he is for too long."""
        for number, deadline in tuple(self._leaving.items()):
            connection = self._connections.get(number)
            if connection is None or not connection.wants_write or now >= deadline:
                self._lose(number, now)
            elif deadline == NEVER:
                self._leaving[number] = now + SECONDS_TO_HEAR_A_REFUSAL
        while self._callers and next(iter(self._callers.values())) <= now:
            why = f"it sent nothing for {SECONDS_TO_INTRODUCE_ONESELF:g} s"
            self._send_first_caller_away(why, now)

    def _send_first_caller_away(self, why: str, now: float) -> None:
        first = next(iter(self._callers), None)
        if first is not None:
            self._refuse(first, why, now)
