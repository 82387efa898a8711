"""The agent's loop: performs what ``decide`` returns for each event."""

import signal
from typing import assert_never

from msgspec.structs import replace

from clusterrun.agent.actions import (
    Action,
    CleanUp,
    CollectOutput,
    CollectStacks,
    ExpectNoStacks,
    Finish,
    ForwardSignal,
    HideInterrupts,
    PrintNotice,
    PrintStacks,
    ReportEnd,
    ReportFailure,
    ReportStacks,
    Restart,
    Resume,
    SendToCoordinator,
    SetDeadline,
    SignalWorkers,
    StackAction,
    Suspend,
)
from clusterrun.agent.conclusion import conclude, fates_of
from clusterrun.agent.decide import decide
from clusterrun.agent.loop import EventLoop
from clusterrun.agent.ports import Attempts, Clock, EventSource, Peers, Workers
from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.agent.state import Phase, Rules, State
from clusterrun.coordination.messages import AgentMessage, Failing, Stacks, Suspension, done
from clusterrun.domain.events import Event, WorkerExited, WorkerKilled
from clusterrun.domain.outcome import Fate, Killed, Outcome
from clusterrun.domain.plan import NodePlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup


class Supervisor:
    """Runs attempts until the job is over."""

    def __init__(
        self,
        attempts: Attempts,
        workers: Workers,
        peers: Peers,
        inbox: SignalInbox,
        clock: Clock,
    ) -> None:
        """Take the attempts, the workers, the nodes, the signals to this process, and the clock."""
        self._attempts = attempts
        self._workers = workers
        self._peers = peers
        self._inbox = inbox
        self._clock = clock
        self._epoch = clock.time() - clock.monotonic()
        self._loop = EventLoop(inbox, self._sources, clock, self._reap)
        self._evidence: dict[LocalRank, str] = {}

    def run(self, rules: Rules) -> Outcome:
        """Start the first attempt, supervise until the job is over, and return how it ended."""
        attempt = 0
        while True:
            outcome, again = self._run_attempt(self._attempts.plan(attempt), rules)
            if not again:
                return outcome
            self._attempts.failed(outcome)
            attempt += 1

    def _run_attempt(self, plan: NodePlan, rules: Rules) -> tuple[Outcome, bool]:
        world, local_ranks = plan.world, frozenset(worker.local_rank for worker in plan.workers)
        state = State(rules, world.attempt, world.nodes, plan.signal_group, local_ranks)
        self._loop.begin_attempt(world.attempt)
        self._evidence.clear()
        self._workers.start(plan)
        while True:
            event = self._loop.next_event()
            before, (state, actions) = state, decide(state, event)
            self._attempts.note(before, state, event.at)
            self._note_evidence(event, state)
            for action in actions:
                if isinstance(action, Restart | Finish):
                    outcome = conclude(state, world.attempt, self._fates(state, plan))
                    return outcome, isinstance(action, Restart)
                self._perform(action, state, plan)

    def _sources(self) -> list[EventSource]:
        return [*self._workers.sources, *self._peers.sources]

    def _reap(self) -> None:
        if self._inbox.child_ended:
            self._inbox.child_ended = False
            self._workers.reap()

    def _note_evidence(self, event: Event, state: State) -> None:
        """Read the OOM killer's counters at each failure that may be a cause."""
        if not isinstance(event, WorkerExited | WorkerKilled):
            return
        ended = state.ended[event.local_rank]
        by_none_of_us = not ended.stopped_by_us or (
            ended.ending == Killed(signal.SIGKILL) and state.phase is Phase.STOPPING
        )
        if by_none_of_us and not ended.ending.succeeded:
            self._evidence[event.local_rank] = self._attempts.out_of_memory()

    def _fates(self, state: State, plan: NodePlan) -> tuple[Fate, ...]:
        return fates_of(state, plan, self._evidence, self._workers.logs(plan), self._epoch)

    def _perform(self, action: Action, state: State, plan: NodePlan) -> None:
        match action:
            case SignalWorkers(local_ranks, number, group, spare_failing):
                self._workers.signal(local_ranks, number, group=group, spare_failing=spare_failing)
            case ForwardSignal(number):
                self._workers.forward(number)
            case CollectOutput(local_rank):
                self._loop.add(self._workers.collect(local_rank, self._clock.monotonic()))
            case CleanUp():
                self._loop.add(self._workers.sweep(self._clock.monotonic()))
            case SetDeadline(seconds):
                self._loop.set_deadline(seconds)
            case HideInterrupts():
                self._workers.interrupted()
            case Suspend():
                self._send(Suspension(suspended=True))
                self._workers.suspend()
                self._send(Suspension(suspended=False))
            case Resume():
                self._workers.resume()
            case PrintNotice(text):
                self._workers.say(f"clusterrun: {text}")
            case SendToCoordinator(message):
                self._send(message)
            case ReportFailure(local_rank):
                self._send(self._failing(local_rank, state, plan))
            case ReportEnd():
                now = self._epoch + self._clock.monotonic()
                fates = self._fates(state, plan)
                self._send(done(state.attempt, fates, now, state.external_cause))
            case Restart() | Finish():
                raise AssertionError("ends the attempt, in _run_attempt")
            case _:
                self._perform_on_stacks(action, state, plan)

    def _perform_on_stacks(self, action: StackAction, state: State, plan: NodePlan) -> None:
        match action:
            case CollectStacks(number):
                self._workers.collect_stacks(number)
            case ExpectNoStacks(local_ranks):
                self._workers.lack_stacks(local_ranks)
            case ReportStacks(number, groups):
                by_rank = tuple(_by_rank(group, plan) for group in groups)
                self._send(Stacks(state.attempt, number, by_rank))
            case PrintStacks(text):
                self._workers.show_stacks(text)
            case _:
                assert_never(action)

    def _failing(self, local_rank: LocalRank, state: State, plan: NodePlan) -> Failing:
        fates = self._fates(state, plan)
        fate = next(fate for fate in fates if fate.local_rank == local_rank)
        return Failing(
            state.attempt, fate, self._clock.monotonic() - state.ended[local_rank].failed_at
        )

    def _send(self, message: AgentMessage) -> None:
        # Before signals that are queued already: they arrived later than what is reported.
        self._loop.add_first(self._peers.send(message))


def _by_rank(group: StackGroup, plan: NodePlan) -> StackGroup:
    """Return the stacks of workers by their global ranks."""
    ranks = {worker.local_rank: worker.rank for worker in plan.workers}
    known = (ranks[rank] for rank in map(LocalRank, group.ranks) if rank in ranks)
    return replace(group, ranks=tuple(known))
