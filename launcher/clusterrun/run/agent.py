"""The agent's loop: performs what the policy decides on each event, by what other rooms have for it."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from clusterrun.bounds import LocalRank
from clusterrun.job.job import Job
from clusterrun.loop import Loop
from clusterrun.planning.plan import NodePlan, World
from clusterrun.policy import actions, events
from clusterrun.policy.actions import Action, WorkersAction
from clusterrun.policy.events import (
    CoordinatorSent,
    DeadlinePassed,
    Event,
    ForkServerPrepared,
    LookEvent,
    LookOrdered,
    RelaySaw,
    WorkerEnded,
)
from clusterrun.policy.fates import conclude, done, fates_of
from clusterrun.policy.messages import (
    AgentMessage,
    FirstFailure,
    HoldRanks,
    Paused,
    Stop,
    SuspensionPossible,
    Verdict,
)
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import Evidence, Fate, NotStarted, Outcome
from clusterrun.signals import ChildEnded, SignalReceived

CONCERNS_ANY_ATTEMPT = (
    SignalReceived,
    events.SuspensionWanted,
    events.StopWanted,
    events.OutputClosed,
    events.HelperLost,
    events.CoordinatorLost,
    events.CoordinatorSought,
    LookEvent,
    ChildEnded,
    ForkServerPrepared,
)
"""Events that come once, and concern the attempt that begins as well as the one before."""


class Attempts(Protocol):
    """The attempts of the job."""

    def plan(self, world: World) -> NodePlan:
        """Return the plan of the attempt in this world, which starts now."""

    def note(self, attempt: Attempt, at: float) -> None:
        """Note what has become of an attempt with an event at ``at``."""

    def evidence(self) -> Evidence:
        """Return what the node shows of the OOM killer and of broken hardware in this attempt."""

    def failed(self, outcome: Outcome) -> None:
        """Print how an attempt ended that is followed by another."""


class Looks(Protocol):
    """Answers the looks of users into the job: see ``clusterrun.policy.looks``."""

    def take(self, event: LookEvent) -> Iterable[Event]:
        """Take what belongs to a look."""

    def collect_stacks(self, now: float) -> Iterable[Event]:
        """Have the workers of this node print their Python stacks; ``StacksCollected`` follows."""


class Peers(Protocol):
    """All nodes of the job, this one included, by way of the coordinator."""

    def send(self, message: AgentMessage) -> Iterable[Event]:
        """Send a message to the coordinator; return what it answers at once.

        ``Done`` is answered once all nodes have sent theirs.
        """


class LocalWorkers(Protocol):
    """The workers of this node, and their output."""

    def start(self, plan: NodePlan) -> None:
        """Start all workers of an attempt, once the fork server is prepared."""

    def start_held(self) -> None:
        """Start workers that wait for it: ``ForkServerPrepared`` has happened."""

    def perform(self, action: WorkersAction) -> None:
        """Do what the policy has decided; what an action expects to follow is in the loop, now or later."""

    def reap(self) -> None:
        """Reap adopted children that have exited."""

    def pause(self) -> None:
        """Stop the workers, then this process; return when it is continued."""

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        """Return the file of each worker's standard error; empty where none are kept."""


class Agent:
    """Runs attempts until the job is over."""

    def __init__(  # noqa: PLR0913 - each stands for a part of the outside world
        self,
        attempts: Attempts,
        workers: LocalWorkers,
        peers: Peers,
        looks: Looks,
        *,
        loop: Loop[Event],
        wall_clock: Callable[[], float],
    ) -> None:
        """Take the attempts, the workers, the nodes, and the loop that waits for all of them.

        ``wall_clock`` returns seconds since the epoch; ``looks`` answers looks into the job.
        """
        self._attempts = attempts
        self._workers = workers
        self._peers = peers
        self._loop = loop
        self._looks = looks
        self._epoch = wall_clock() - loop.clock()
        self._evidence: dict[LocalRank, Evidence] = {}

    def run(self, job: Job, world: World, *, foreground: bool) -> Outcome:
        """Supervise this node's attempts, from its first ``world`` on; return how the job ended.

        ``foreground``: its one worker has the terminal.
        """
        can_suspend = False
        while True:
            plan = self._attempts.plan(world)
            attempt = Attempt(job, plan, foreground=foreground, can_suspend=can_suspend)
            next_world = self._run_attempt(attempt)
            outcome = conclude(attempt, self._fates(attempt))
            if next_world is None:
                return outcome
            self._attempts.failed(outcome)
            world, can_suspend = next_world, attempt.suspending.possible
            self._loop.cancel(DeadlinePassed)
            self._loop.keep(partial(_concerns, world.attempt))

    def _run_attempt(self, attempt: Attempt) -> World | None:
        """Return the world of the next attempt; None if none follows."""
        self._evidence.clear()
        self._workers.start(attempt.plan)
        while True:
            event = self._loop.next_event()
            match event:
                case LookOrdered() | RelaySaw():
                    # First: node 0 prints the stacks of a hang before it stops its workers.
                    self._loop.add_first(self._looks.take(event))
                    continue
                case ChildEnded():
                    self._workers.reap()
                    continue
                case ForkServerPrepared():
                    self._workers.start_held()
                    continue
            decided = attempt.happens(event)
            self._attempts.note(attempt, event.at)
            self._note_evidence(event, attempt)
            for action in decided:
                match action:
                    case actions.Restart(next_world):
                        return next_world
                    case actions.Finish():
                        return None
                    case _:
                        self._perform(action, attempt)

    def _note_evidence(self, event: Event, attempt: Attempt) -> None:
        """Look for the machine's part in each failure that may be a cause."""
        if not isinstance(event, WorkerEnded) or isinstance(event.ending, NotStarted):
            return
        ended = attempt.ended[event.local_rank]
        by_none_of_us = not ended.stopped_by_us or ended.killed_by_others
        if by_none_of_us and not ended.ending.succeeded:
            self._evidence[event.local_rank] = self._attempts.evidence()

    def _fates(self, attempt: Attempt) -> tuple[Fate, ...]:
        return fates_of(attempt, self._evidence, self._workers.logs(attempt.plan), self._epoch)

    def _perform(self, action: Action, attempt: Attempt) -> None:
        match action:
            case actions.SendToCoordinator(message):
                self._send(message)
            case actions.ReportFailure(local_rank):
                self._send(self._first_failure(local_rank, attempt))
            case actions.ReportEnd():
                now = self._epoch + self._loop.clock()
                fates = self._fates(attempt)
                self._send(done(attempt.number, fates, now, attempt.external_cause))
            case actions.CollectStacks():
                self._loop.add(self._looks.collect_stacks(self._loop.clock()))
            case actions.SetDeadline(seconds):
                self._loop.at(DeadlinePassed, self._loop.clock() + seconds, DeadlinePassed)
            case actions.Pause():
                self._send(Paused(paused=True))
                self._workers.pause()
                self._send(Paused(paused=False))
            case actions.Restart() | actions.Finish():
                raise AssertionError("ends the attempt, in _run_attempt")
            case _:
                self._workers.perform(action)

    def _first_failure(self, local_rank: LocalRank, attempt: Attempt) -> FirstFailure:
        fates = self._fates(attempt)
        fate = next(fate for fate in fates if fate.local_rank == local_rank)
        return FirstFailure(
            attempt.number, fate, self._loop.clock() - attempt.ended[local_rank].failed_at
        )

    def _send(self, message: AgentMessage) -> None:
        # Before signals that are queued already: they arrived later than what is reported.
        self._loop.add_first(self._peers.send(message))


def _concerns(attempt: int, event: Event) -> bool:
    match event:
        case CoordinatorSent(Stop(of_attempt) | HoldRanks(of_attempt)):
            return of_attempt == attempt
        case CoordinatorSent(SuspensionPossible() | Verdict()):
            return True
        case _:
            return isinstance(event, CONCERNS_ANY_ATTEMPT)
