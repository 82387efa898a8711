"""The other nodes of a running job, as the agent reports to them and gets events from them."""

import select
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from clusterrun.coordination.bounded_messages import bounded
from clusterrun.coordination.heartbeat import HeartbeatRhythm, HeartbeatTimer
from clusterrun.coordination.messages import (
    AgentMessage,
    FromCoordinator,
    NextAttempt,
    Notice,
    SendStacks,
    Suspension,
    Verdict,
)
from clusterrun.coordination.state import NEVER
from clusterrun.domain.events import CoordinatorLost, Event
from clusterrun.domain.world import World
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.coordinator_events import event_of
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.frames import HEARTBEAT_FRAME, BadFrame

SECONDS_FOR_VERDICT = 3.0
"""How long node 0 stays so that members can receive the verdict."""


class Peers:
    """A member's connection to the coordinator; on node 0, also the coordinator."""

    wants_write = False
    """Never: ``fileno`` is readable also if something can be sent."""

    def __init__(  # noqa: PLR0913 - what joining has found out
        self,
        world: World,
        node_zero: str,
        connection: Connection[FromCoordinator],
        *,
        early: Sequence[FromCoordinator],
        coordination: CoordinatorServer | None,
        rhythm: HeartbeatRhythm,
        hooks: AgentHooks,
    ) -> None:
        """Take over the connection, and the coordinator on node 0, the host ``node_zero``."""
        self._world = world
        self._node_zero = node_zero
        self._connection = connection
        self._early = list(early)
        self._coordination = coordination
        self._notice = hooks.notice
        self._clock = hooks.clock
        # Node 0's own agent and its coordinator are one process.
        self._heartbeat = HeartbeatTimer(rhythm, self._clock()) if coordination is None else None
        self._has_verdict = False
        self._over = False
        self._epoll = select.epoll()
        connection.watch(self._epoll)
        if coordination is not None:
            self._epoll.register(coordination, select.EPOLLIN)

    @property
    def run_id(self) -> str:
        return self._world.run_id

    def world(self, attempt: int) -> World:
        """Return this node's world in the n-th attempt, which the coordinator has begun."""
        if attempt != self._world.attempt:
            raise AssertionError(f"attempt {attempt}, and node 0 is at {self._world.attempt}")
        return self._world

    @property
    def sources(self) -> "tuple[Peers]":
        return (self,)

    @property
    def due(self) -> float:
        # Messages that have arrived already must not wait for others.
        if self._early:
            return 0.0
        if self._coordination is not None:
            return self._coordination.due
        return NEVER if self._heartbeat is None else self._heartbeat.due

    def fileno(self) -> int:
        return self._epoll.fileno()

    @property
    def lost(self) -> bool:
        """Whether nothing more will come: after the verdict, or if node 0 is lost."""
        return self._over

    def flush(self) -> None:
        """Do nothing: ``events`` sends."""

    def events(self, now: float) -> Iterator[Event]:
        """Return the coordinator's messages as events; on node 0, also run the coordinator."""
        if self._over:
            return
        if self._coordination is not None:
            self._coordination.turn(now)
        for message in self._messages(now):
            yield from self._event(message, now)
        if how := self._loss(now):
            self._over = True
            # So that node 0, if it runs, notices at once.
            self._connection.close()
            yield CoordinatorLost(self._node_zero, how, now)
        if not self._over:
            self._connection.watch(self._epoll)

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message; the answer comes by ``events``."""
        if self._over:
            return ()
        self._connection.send(bounded(message))
        if self._coordination is not None and isinstance(message, Suspension):
            # Once stopped, this process can't pass it on.
            self._coordination.turn(self._clock())
        self._connection.watch(self._epoll)
        return ()

    def leave(self) -> None:
        """Disconnect; node 0 first waits some seconds until the others have the verdict."""
        if self._epoll.closed:
            return
        self._over = True
        self._epoll.close()
        self._connection.close()
        if self._coordination is not None:
            self._coordination.finish(SECONDS_FOR_VERDICT, self._clock)

    def _loss(self, now: float) -> str:
        """Send a heartbeat if it is due; return how node 0 was lost, "" if it was not."""
        if self._has_verdict:
            return ""
        heartbeat, connection = self._heartbeat, self._connection
        if heartbeat is not None and heartbeat.is_heartbeat_due(now):
            connection.send_frame(HEARTBEAT_FRAME)
        silent = heartbeat is not None and (heartbeat.is_lost(now) or connection.unreachable)
        if heartbeat is not None and silent:
            return heartbeat.rhythm.silence
        return "is gone" if connection.closed else ""

    def _messages(self, now: float) -> list[FromCoordinator]:
        early, self._early = self._early, []
        try:
            received = self._connection.receive()
        except BadFrame:
            # A coordinator sends no such frame.
            self._connection.closed = True
            return early
        if received and self._heartbeat is not None:
            self._heartbeat.received(now)
        return [*early, *received]

    def _event(self, message: FromCoordinator, now: float) -> Iterator[Event]:
        match message:
            case NextAttempt(world):
                known = self._world
                self._world = replace(
                    world, master_addr=known.master_addr, interface=known.interface
                )
            case Verdict():
                self._has_verdict = True
                if self._coordination is None:
                    # At once: node 0 waits until all have disconnected.
                    self._over = True
                    self._connection.close()
            case SendStacks(attempt) if attempt != self._world.attempt:
                return
            case Notice(text):
                self._notice(text)
            case Suspension(suspended):
                self._wait_for_node_zero(now, suspended=suspended)
        event = event_of(message, now, on_node_zero=self._coordination is not None)
        if event is not None:
            yield event

    def _wait_for_node_zero(self, now: float, *, suspended: bool) -> None:
        if self._heartbeat is None:
            return
        if suspended:
            self._heartbeat.pause()
        else:
            self._heartbeat.resume(now)
