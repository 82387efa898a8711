"""The agent's loop: passes each event to the policy, and has the policy's actions performed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.bounds import LocalRank
from clusterrun.loop import NEVER, Loop
from clusterrun.planning.plan import World
from clusterrun.policy import actions, events
from clusterrun.policy.actions import Action
from clusterrun.policy.events import (
    CoordinatorSent,
    DeadlinePassed,
    Event,
    ForkServerPrepared,
    QueryEvent,
    QueryReceived,
    RelayAnswered,
    WorkerEnded,
)
from clusterrun.policy.messages import (
    AgentMessage,
    DatedExit,
    DatedResult,
    Done,
    FirstFailure,
    GivenUp,
    HoldRanks,
    Paused,
    PrintStacks,
    RanksExited,
    Stop,
    SuspensionPossible,
    Verdict,
)
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import NotStarted, Outcome, WorkerResult
from clusterrun.policy.results import conclude, results_of
from clusterrun.signals import ChildEnded, SignalReceived

if TYPE_CHECKING:
    # A job imports only one kind of membership.
    from clusterrun.network.membership import Membership
    from clusterrun.run.attempts import JobAttempts
    from clusterrun.run.commands import Commands
    from clusterrun.run.readiness import ReadinessProbe
    from clusterrun.run.single_node import SingleNodeMembership
    from clusterrun.workers.node_workers import NodeWorkers

EVENTS_FOR_ANY_ATTEMPT = (
    SignalReceived,
    events.SuspensionRequested,
    events.StopRequested,
    events.OutputClosed,
    events.HelperLost,
    events.CoordinatorLost,
    QueryEvent,
    ChildEnded,
    ForkServerPrepared,
)
"""Events that come only once, and so must not be lost when a new attempt starts."""


class Agent:
    """Runs attempts until the job is over."""

    def __init__(  # noqa: PLR0913 - each performs a different kind of action
        self,
        attempts: JobAttempts,
        workers: NodeWorkers,
        peers: SingleNodeMembership | Membership,
        commands: Commands,
        *,
        loop: Loop[Event],
        wall_clock: Callable[[], float],
    ) -> None:
        """``peers`` sends messages to the coordinator; ``wall_clock`` returns seconds since the epoch."""
        self._attempts = attempts
        self._workers = workers
        self._peers = peers
        self._loop = loop
        self._commands = commands
        self._epoch = wall_clock() - loop.clock()
        self._out_of_memory: dict[LocalRank, str] = {}
        """A sentence for each failed worker on the OOM killer's kills before its failure."""
        self._probes: dict[LocalRank, ReadinessProbe] = {}
        """Of the workers of services."""

    def run(self, world: World) -> Outcome | None:
        """Run this node's attempts, the first one in ``world``; return the outcome of the job.

        None: the job continues without this node, which must join again.
        """
        while True:
            attempt = self._attempts.begin(world)
            end = self._run_attempt(attempt)
            if isinstance(end, actions.Rejoin):
                self._commands.progress.rejoins_since = self._loop.clock()
                self._loop.keep(partial(_is_for_attempt, NEVER))
                return None
            outcome = conclude(attempt, self._results(attempt))
            if isinstance(end, actions.Finish):
                return outcome
            self._attempts.attempt_failed(outcome)
            world = end.world
            self._loop.keep(partial(_is_for_attempt, world.attempt))

    def _run_attempt(self, attempt: Attempt) -> actions.Restart | actions.Rejoin | actions.Finish:
        """Return what follows the attempt on this node."""
        self._out_of_memory.clear()
        while self._probes:
            self._probes.popitem()[1].close()
        self._workers.start(attempt.plan, attempt.starting)
        while True:
            event = self._loop.next_event()
            match event:
                case QueryReceived(PrintStacks(text)):
                    self._workers.print_stacks(text)
                    continue
                case QueryReceived() | RelayAnswered():
                    # First, because node 0 prints the stacks of a hang before it stops its workers.
                    self._loop.add_first(self._commands.take(event))
                    continue
                case ChildEnded():
                    self._workers.reap()
                    continue
                case ForkServerPrepared():
                    self._workers.start_pending()
                    continue
            to_perform = attempt.handle(event)
            self._attempts.record_changes(attempt, event.at)
            self._record_oom_kills(event, attempt)
            for action in to_perform:
                match action:
                    case actions.Restart() | actions.Rejoin() | actions.Finish():
                        return action
                    case _:
                        self._perform(action, attempt)

    def _record_oom_kills(self, event: Event, attempt: Attempt) -> None:
        """Read the kernel's OOM counters if this event is a failure that may have caused the end."""
        if not isinstance(event, WorkerEnded) or isinstance(event.exit_status, NotStarted):
            return
        ended = attempt.ended.get(event.local_rank)
        if ended is None:
            # The worker is restarted.
            return
        may_be_cause = not ended.stopped_by_us or ended.killed_by_others
        if may_be_cause and not ended.exit_status.succeeded:
            self._out_of_memory[event.local_rank] = self._attempts.oom_kills()

    def _results(self, attempt: Attempt) -> tuple[WorkerResult, ...]:
        logs = self._workers.logs(attempt.plan)
        return results_of(attempt, self._out_of_memory, logs, self._epoch)

    def _perform(self, action: Action, attempt: Attempt) -> None:
        match action:
            case actions.SendToCoordinator(message):
                self._send(message)
            case actions.ReportFailure(local_rank):
                self._send(self._first_failure(local_rank, attempt))
            case actions.ReportExits(local_ranks):
                self._send(self._exit_report(local_ranks, attempt))
            case actions.ReportEnd():
                now = self._epoch + self._loop.clock()
                results = (
                    DatedResult(it, self._peers.node_zero_time(now - it.clock))
                    for it in self._results(attempt)
                )
                cause, lease_expired = attempt.external_cause, attempt.lease_expired
                self._send(Done(attempt.number, tuple(results), cause, lease_expired))
            case actions.CollectStacks():
                self._loop.add(self._commands.collect_stacks(self._loop.clock()))
            case actions.SetDeadline(seconds):
                self._loop.at(DeadlinePassed, self._loop.clock() + seconds, DeadlinePassed)
            case actions.Pause():
                self._send(Paused(paused=True))
                self._workers.pause()
                self._send(Paused(paused=False))
            case actions.ProbeReadiness(local_rank):
                self._probe(local_rank, attempt)
            case actions.CollectOutput(local_rank):
                if (probe := self._probes.pop(local_rank, None)) is not None:
                    probe.close()
                self._workers.perform(action)
            case actions.RunCheck():
                self._loop.add(self._attempts.check(self._loop.clock()))
            case actions.Restart() | actions.Rejoin() | actions.Finish():
                raise AssertionError("ends the attempt, in _run_attempt")
            case _:
                self._workers.perform(action)

    def _probe(self, local_rank: LocalRank, attempt: Attempt) -> None:
        """Probe the worker of a service until it is ready or ends."""
        # Few jobs have services.
        from clusterrun.run.readiness import ReadinessProbe

        worker, world = attempt.plan.workers[local_rank], attempt.plan.world
        if worker.service is None:
            raise AssertionError("only services are probed")
        program = next(each for each in world.programs if each.name == worker.service.name)
        address = program.nodes[program.position_on(world.node_rank)[0]].address
        port = int(worker.env["PORT"])
        self._probes[local_rank] = ReadinessProbe(
            local_rank, worker.service, address, port, self._loop
        )

    def _first_failure(self, local_rank: LocalRank, attempt: Attempt) -> FirstFailure:
        results = self._results(attempt)
        result = next(result for result in results if result.local_rank == local_rank)
        age = self._loop.clock() - attempt.ended[local_rank].failed_at
        return FirstFailure(attempt.number, result, self._peers.node_zero_time(age))

    def _exit_report(self, local_ranks: tuple[LocalRank, ...], attempt: Attempt) -> RanksExited:
        now, numbers = self._loop.clock(), attempt.plan.numbers
        exits = (
            DatedExit(numbers[rank], self._peers.node_zero_time(now - attempt.ended[rank].at))
            for rank in local_ranks
        )
        return RanksExited(attempt.number, tuple(exits))

    def _send(self, message: AgentMessage) -> None:
        # Before queued signals, which arrived later than what the message reports.
        self._loop.add_first(self._peers.send(message))


def _is_for_attempt(attempt: float, event: Event) -> bool:
    match event:
        case CoordinatorSent(Stop(of_attempt) | HoldRanks(of_attempt)):
            return of_attempt == attempt
        case CoordinatorSent(SuspensionPossible() | Verdict() | GivenUp()):
            return True
        case _:
            return isinstance(event, EVENTS_FOR_ANY_ATTEMPT)
