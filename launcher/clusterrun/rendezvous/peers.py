"""The other nodes of a running job, as the agent's event source: what it tells them, and hears."""

import select
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from clusterrun.coordination import bounded_messages
from clusterrun.coordination.heartbeat import HeartbeatRhythm, HeartbeatTimer
from clusterrun.coordination.messages import (
    FromCoordinator,
    FromMember,
    Idle,
    NextAttempt,
    Notice,
    RequestStacks,
    SendStacks,
    Suspension,
    Verdict,
)
from clusterrun.domain.events import (
    CoordinatorLost,
    Event,
)
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
)
from clusterrun.domain.stacks import StackGroup
from clusterrun.domain.world import World
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.coordinator_events import event_of
from clusterrun.rendezvous.coordinator_server import CoordinatorServer
from clusterrun.rendezvous.wire.connection import Connection
from clusterrun.rendezvous.wire.frames import (
    HEARTBEAT_FRAME,
    BadFrame,
)
from clusterrun.rendezvous.wire.timer import Timer

SECONDS_FOR_LAST_WORDS = 3.0
"""How long node 0 stays for members that have not heard the verdict."""

NEVER = float("inf")


class Peers:
    """A member's connection to the coordinator; on node 0 the coordinator, too."""

    wants_write = False
    """Never: what waits to be sent is watched behind ``fileno``."""

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
        # Between node 0's own agent and the coordinator in it there is nothing to be cut.
        self._heartbeat = HeartbeatTimer(rhythm, self._clock()) if coordination is None else None
        self._judged = False
        self._over = False
        self._timer = Timer()
        self._epoll = select.epoll()
        self._mask = select.EPOLLIN
        self._epoll.register(connection, self._mask)
        self._epoll.register(self._timer, select.EPOLLIN)
        if coordination is not None:
            self._epoll.register(coordination, select.EPOLLIN)
        # What is there already must be heard without anything else happening.
        self._timer.set(0.0 if self._early else self._due, self._clock())

    @property
    def run_id(self) -> str:
        """What all nodes call this job."""
        return self._world.run_id

    def world(self, attempt: int) -> World:
        """Return this node's place in the n-th attempt, which node 0 has told us of."""
        if attempt != self._world.attempt:
            raise AssertionError(f"attempt {attempt}, and node 0 is at {self._world.attempt}")
        return self._world

    @property
    def sources(self) -> "tuple[Peers]":
        """Where news of the other nodes comes from."""
        return (self,)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when there may be ``events``."""
        return self._epoll.fileno()

    @property
    def lost(self) -> bool:
        """Whether nothing more will come: the verdict has, or node 0 is gone."""
        return self._over

    def flush(self) -> None:
        """Do nothing: ``events`` sends, too."""

    def events(self, now: float) -> Iterator[Event]:
        """Return what the other nodes made happen; on node 0, serve them."""
        if self._over:
            return
        if self._coordination is not None:
            self._coordination.turn(now)
        for message in self._messages(now):
            yield from self._event(message, now)
        if how := self._loss(now):
            self._over = True
            # Hung up on, it learns at once of us what it may be about to find out.
            self._connection.close()
            yield CoordinatorLost(self._node_zero, how, now)
        self._watch(now)

    def report_failure(self, fate: Fate, age: float) -> Iterable[Event]:
        """Report that a worker failed ``age`` seconds ago: all nodes stop at once."""
        return self._send(bounded_messages.failing(self._world.attempt, fate, age))

    def report_external_cause(self, external_cause: ExternalCause) -> Iterable[Event]:
        """Report what ends the job from outside its workers: all nodes stop at once."""
        return self._send(bounded_messages.ended_externally(self._world.attempt, external_cause))

    def report_end(
        self, fates: Sequence[Fate], now: float, external_cause: ExternalCause | None
    ) -> Iterable[Event]:
        """Report how all workers of this node ended, and what ended them from outside, if anything.

        ``now`` is the time by the clock that ``Fate.clock`` was read from: only ages travel. The
        answer is ``VerdictReached`` or ``RestartOrdered``, once all nodes have reported.
        """
        return self._send(bounded_messages.done(self._world.attempt, fates, now, external_cause))

    def request_stacks(self) -> Iterable[Event]:
        """Have the stacks of all ranks collected, and shown on node 0."""
        return self._send(RequestStacks(self._world.attempt))

    def report_stacks(self, number: int, groups: Sequence[StackGroup]) -> Iterable[Event]:
        """Answer the coordinator's n-th request for stacks."""
        return self._send(bounded_messages.stacks(self._world.attempt, number, groups))

    def report_stillness(self, seconds: float) -> Iterable[Event]:
        """Report that no worker here has printed or exited for ``seconds``; 0: one has again."""
        return self._send(Idle(self._world.attempt, seconds))

    def report_suspension(self, *, suspended: bool) -> Iterable[Event]:
        """Report that this agent is about to be stopped, or continues: its silence is no loss."""
        self._send(Suspension(suspended))
        if self._coordination is not None and not self._over:
            # Now: stopped, we can't pass it on.
            self._coordination.turn(self._clock())
        return ()

    def leave(self) -> None:
        """Hang up; node 0 first lets the others hear the verdict, for at most some seconds."""
        if self._epoll.closed:
            return
        self._over = True
        self._timer.close()
        self._epoll.close()
        self._connection.close()
        if self._coordination is not None:
            self._coordination.finish(SECONDS_FOR_LAST_WORDS, self._clock)

    @property
    def _due(self) -> float:
        if self._coordination is not None:
            return self._coordination.due
        return NEVER if self._heartbeat is None else self._heartbeat.due

    def _loss(self, now: float) -> str:
        """Say that we live if it is time to; return what has become of node 0, "" if it lives."""
        if self._judged:
            return ""
        heartbeat, connection = self._heartbeat, self._connection
        if heartbeat is not None and heartbeat.is_heartbeat_due(now):
            connection.send_frame(HEARTBEAT_FRAME)
        silent = heartbeat is not None and (heartbeat.is_lost(now) or connection.unreachable)
        if heartbeat is not None and silent:
            return heartbeat.rhythm.silence
        return "is gone" if connection.closed else ""

    def _send(self, message: FromMember) -> Iterable[Event]:
        """Send a message; the answer comes by ``events``."""
        if not self._over:
            self._connection.send(message)
            self._watch(self._clock())
        return ()

    def _messages(self, now: float) -> list[FromCoordinator]:
        early, self._early = self._early, []
        self._connection.flush()
        try:
            heard = self._connection.receive()
        except BadFrame:
            # Whoever that is, it is not our coordinator any more.
            self._connection.closed = True
            return early
        if heard and self._heartbeat is not None:
            self._heartbeat.received(now)
        return [*early, *heard]

    def _event(self, message: FromCoordinator, now: float) -> Iterator[Event]:
        match message:
            case NextAttempt(world):
                known = self._world
                self._world = replace(
                    world, master_addr=known.master_addr, interface=known.interface
                )
            case Verdict():
                self._judged = True
                if self._coordination is None:
                    # At once: node 0 waits until all have hung up.
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

    def _watch(self, now: float) -> None:
        if self._over:
            return
        mask = select.EPOLLIN | (select.EPOLLOUT if self._connection.wants_write else 0)
        if mask != self._mask:
            self._mask = mask
            self._epoll.modify(self._connection, mask)
        self._timer.set(self._due, now)
