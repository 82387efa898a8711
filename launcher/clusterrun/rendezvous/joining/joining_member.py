"""A node that joins as a member: it connects to node 0, sends its hello and waits for the world."""

import select

from msgspec.structs import replace

from clusterrun.coordination.heartbeat import HeartbeatTimer
from clusterrun.coordination.messages import (
    FromCoordinator,
    Heartbeat,
    Notice,
    Refusal,
    Refused,
    WorldFormed,
)
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.joining.dialer import Dialer, OutgoingConnection
from clusterrun.rendezvous.joining.join_failures import CLOSED_BY_NODE_ZERO, node_zero_silent
from clusterrun.rendezvous.joining.join_timeout import JoinTimeout
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.names.addresses import Address, interface_of
from clusterrun.rendezvous.wire.frames import HEARTBEAT_FRAME, BadFrame

SECONDS_AFTER_TIMEOUT = 5.0
"""Node 0 ends the wait at the timeout; a member that does not learn of it ends this much later."""


class JoiningMember:
    """One descriptor; ``turn`` does what is possible. Ends with ``formed`` or ``failure``."""

    def __init__(self, node: JoiningNode, timeout: JoinTimeout, now: float) -> None:
        self.formed: WorldFormed | None = None
        self.failure: RendezvousError | None = None
        self.refusal: Refusal | None = None
        """How node 0 has refused this node; None if it has not."""
        self.early: list[FromCoordinator] = []
        """Messages received after ``formed``."""
        self.interface = ""
        """The network interface that leads to node 0."""
        self._node = node
        self._settings, self._hello, _, self._hooks = node
        self._timeout = timeout
        self._epoll = select.epoll()
        self._dialer = Dialer(node, self._epoll, now)
        self._outgoing: OutgoingConnection | None = None
        self._heartbeat = HeartbeatTimer(self._settings.rhythm, now)
        self._latest_end = 0.0

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def due(self) -> float:
        if self._outgoing is not None:
            return min(self._latest_end, self._heartbeat.due)
        return min(self._dialer.due, self._timeout.due)

    @property
    def finished(self) -> bool:
        return self.formed is not None or self.failure is not None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The addresses of node 0's name, as last looked up."""
        return self._dialer.addresses

    @property
    def is_connected(self) -> bool:
        """Whether node 0 has answered and not refused this node."""
        return self._outgoing is not None and self.failure is None

    def turn(self, now: float) -> None:
        if self._outgoing is None:
            self._dial(now)
        else:
            self._exchange(self._outgoing, now)
        if not self.finished:
            self._check_time(now)

    def close(self) -> None:
        self._dialer.close()
        if self._outgoing is not None:
            self._outgoing.close()
        self._epoll.close()

    def take_connection(self) -> OutgoingConnection:
        """Return the connection to node 0, which belongs to the caller from now on."""
        outgoing = self._outgoing
        if outgoing is None:
            raise AssertionError("node 0 has not answered")
        outgoing.unwatch(self._epoll)
        self._outgoing = None
        return outgoing

    def _dial(self, now: float) -> None:
        outgoing = self._dialer.turn(now)
        self.failure = self._dialer.failure
        if outgoing is None:
            return
        self._outgoing = outgoing
        self._latest_end = now + self._timeout.seconds + SECONDS_AFTER_TIMEOUT
        self._heartbeat = HeartbeatTimer(self._settings.rhythm, now)
        outgoing.give_up_after(self._heartbeat.rhythm.timeout)
        outgoing.send(replace(self._hello, waited=self._timeout.elapsed(now)))
        # Now, while nothing waits for it: later, the workers would.
        self.interface = interface_of(outgoing.local_address, self._hooks.interfaces())
        self._exchange(outgoing, now)

    def _exchange(self, outgoing: OutgoingConnection, now: float) -> None:
        error = self._receive(outgoing, now)
        if self.finished:
            return
        if self._heartbeat.is_heartbeat_due(now):
            outgoing.send_frame(HEARTBEAT_FRAME)
        if self._heartbeat.is_lost(now):
            error = error or f"node 0 {self._settings.rhythm.silence}"
        if error or outgoing.closed:
            self._outgoing = None
            why = error or outgoing.trouble or CLOSED_BY_NODE_ZERO
            self._dialer.reject(outgoing, why, now)
        else:
            outgoing.watch(self._epoll)

    def _receive(self, outgoing: OutgoingConnection, now: float) -> str:
        """Handle all messages; return why the sender is not this job's node 0, "" if it is."""
        try:
            messages = outgoing.receive()
        except BadFrame as error:
            return f"it {error}"
        if messages:
            self._heartbeat.received(now)
        for index, message in enumerate(messages):
            match message:
                case Heartbeat():
                    continue
                case Notice(text):
                    self._hooks.notice(text)
                case Refused():
                    return self._refused(message)
                case WorldFormed():
                    self.formed = message
                    self.early = messages[index + 1 :]
                    return ""
                case _:
                    return "it ends a job that has not started"
        return ""

    def _refused(self, refused: Refused) -> str:
        if refused.refusal is Refusal.TRY_ELSEWHERE and len(self._settings.ports.value) > 1:
            return refused.text
        self.refusal = refused.refusal
        self.failure = RendezvousError(refused.text, refused.hint)
        return refused.text

    def _check_time(self, now: float) -> None:
        if self._outgoing is not None:
            if now >= self._latest_end:
                self.failure = node_zero_silent(self._settings)
        else:
            self.failure = self._timeout.check(self._node, self._dialer.progress, now)
