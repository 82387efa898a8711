"""Histories, which specify the policy: after these events, these actions.

    history("a failing worker ends the others", workers(2))
        .when(exited(1, 3)).then(collect(1), ask(0), wait(GRACE))
        ...

A history is replayed through an ``Attempt`` and compared, step by step.
"""

import signal
from collections.abc import Iterable
from itertools import islice
from typing import Self

from tests.agent.clock import FakeClock
from tests.agent.door import (
    SECONDS_TO_CLEAN_UP,
    SECONDS_TO_COLLECT,
    SECONDS_TO_DIE,
    Action,
    Attempt,
    CleanedUp,
    CleanUp,
    CollectOutput,
    CoordinatorLost,
    CoordinatorSent,
    DeadlinePassed,
    Done,
    EndedExternally,
    Event,
    ExternalCause,
    Failing,
    Finish,
    FirstFailure,
    ForwardSignal,
    GlobalRank,
    HelperLost,
    HideInterrupts,
    Interrupted,
    LocalRank,
    NextAttempt,
    NodeLost,
    Order,
    OutputClosed,
    OutputEnded,
    OutputGone,
    Pause,
    Phase,
    Reason,
    ReportEnd,
    ReportFailure,
    RequestStacks,
    Restart,
    Resume,
    Rules,
    SendToCoordinator,
    SetDeadline,
    SignalReceived,
    SignalWorkers,
    SingleNode,
    Stop,
    Verdict,
    WorkerExited,
    WorkerKilled,
    WorkerNotStarted,
    WorkerStarted,
    WorkerStopped,
    done,
    fates_of,
)
from tests.agent.node_plans import plan_of
from tests.decided import decide
from tests.plans import job, world

GRACE = 25.0

SWEEP = (CleanUp(), SetDeadline(SECONDS_TO_CLEAN_UP))
LAST_WORDS = SetDeadline(SECONDS_TO_COLLECT)
REPORT_END = ReportEnd()
HUSH = HideInterrupts()
PAUSE = Pause()
RESUME = Resume()
RESTART = Restart()
FINISH = Finish()

TIME_IS_UP = DeadlinePassed(at=100.0)
READER_GONE = OutputClosed(at=10.0)
NODE_0_LOST = CoordinatorLost("node0", "is gone", at=10.0)
FORK_SERVER_LOST = HelperLost("fork server", "was killed by SIGKILL", signal.SIGKILL, at=10.0)
RELAY_LOST = HelperLost("relay", "exited with code 1", 0, at=10.0)


class OneAttempt(Attempt):
    """An attempt; on a single node with what its coordinator knows beforehand."""

    failing: Failing = Failing()


def workers(
    count: int,
    *,
    restarts: int = 0,
    shared: bool = False,
    foreground: bool = False,
    signal_group: bool = False,
) -> Attempt:
    """Return an attempt whose workers have been asked for."""
    return OneAttempt(
        Rules(GRACE, foreground=foreground),
        attempt=0,
        nodes=2 if shared else 1,
        first_rank=GlobalRank(0),
        signal_group=signal_group,
        starting=frozenset(map(LocalRank, range(count))),
        failing=Failing(max_restarts=restarts),
    )


def started(local_rank: int, remark: str = "") -> WorkerStarted:
    """The worker executes its program; its process id is 100 and its rank."""
    return WorkerStarted(LocalRank(local_rank), 100 + local_rank, remark, at=1.0)


def not_started(local_rank: int) -> WorkerNotStarted:
    """The worker's program can't be executed."""
    return WorkerNotStarted(LocalRank(local_rank), "execute train", "Permission denied", at=1.0)


def exited(local_rank: int, code: int = 0) -> WorkerExited:
    """The worker ends by itself."""
    return WorkerExited(LocalRank(local_rank), code, at=10.0)


def killed(local_rank: int, number: int) -> WorkerKilled:
    """A signal ends the worker."""
    return WorkerKilled(LocalRank(local_rank), number, at=10.0)


def stopped(local_rank: int) -> WorkerStopped:
    """Ctrl-Z stops the worker."""
    return WorkerStopped(LocalRank(local_rank), signal.SIGTSTP, at=10.0)


def got(number: int, at: float = 10.0, *, to_fork_server: bool = False) -> SignalReceived:
    """The agent gets a signal, or the fork server does."""
    return SignalReceived(number, at, to_fork_server)


def swept(*survivors: str) -> CleanedUp:
    """Nothing is left but the survivors."""
    return CleanedUp(survivors, at=10.0)


def printed(local_rank: int, tail: str = "") -> OutputEnded:
    """All that the ended worker printed is written."""
    return OutputEnded(LocalRank(local_rank), tail, error_file="", at=10.0)


def sent(message: Order) -> CoordinatorSent:
    """The coordinator sends a message."""
    return CoordinatorSent(message, at=10.0)


def ordered(
    why: str, attempt: int = 0, external_cause: ExternalCause | None = None
) -> CoordinatorSent:
    """Another node ends an attempt."""
    return sent(Stop(attempt, why, external_cause))


def verdict(reason: Reason) -> CoordinatorSent:
    """All nodes are done."""
    return sent(Verdict(reason, ""))


def again(reason: Reason) -> CoordinatorSent:
    """All nodes begin anew."""
    return sent(NextAttempt(world(2, attempt=1), reason))


def collect(*local_ranks: int) -> tuple[CollectOutput, ...]:
    """Have what is left of the workers' output written."""
    return tuple(CollectOutput(LocalRank(rank)) for rank in local_ranks)


def ask(*local_ranks: int, group: bool = False) -> tuple[Action, ...]:
    """Ask the workers to end, those aside that are failing already, and give them their grace."""
    ranks = _ranks(local_ranks)
    return SignalWorkers(ranks, signal.SIGTERM, group, except_failing=True), SetDeadline(GRACE)


def hand_on(number: int, *local_ranks: int) -> tuple[Action, ...]:
    """Send a user's signal to all workers that are left, and give them their grace."""
    return SignalWorkers(_ranks(local_ranks), number, group=False), SetDeadline(GRACE)


def kill(*local_ranks: int) -> tuple[Action, ...]:
    """Kill the workers' groups."""
    return (
        SignalWorkers(_ranks(local_ranks), signal.SIGKILL, group=True),
        SetDeadline(SECONDS_TO_DIE),
    )


def report_failure(local_rank: int) -> ReportFailure:
    """Let the other nodes know of the failure."""
    return ReportFailure(LocalRank(local_rank))


def decline(attempt: int, obstacle: ExternalCause) -> SendToCoordinator:
    """Report that this node starts no worker of the attempt, and why."""
    return SendToCoordinator(Done(attempt, (), obstacle))


def report_interrupted(number: int) -> SendToCoordinator:
    """Let the other nodes know of the signal."""
    return SendToCoordinator(EndedExternally(0, Interrupted(number)))


def forward(number: int) -> ForwardSignal:
    """Pass a signal on to the workers that handle it."""
    return ForwardSignal(number)


def _ranks(local_ranks: Iterable[int]) -> frozenset[LocalRank]:
    return frozenset(map(LocalRank, local_ranks))


ASK_STACKS = SendToCoordinator(RequestStacks(0))

Step = tuple[tuple[Event, ...], tuple[Action, ...]]


class History:
    """What happens in an attempt, step by step, and what is to be done about each."""

    def __init__(self, title: str, start: Attempt) -> None:
        self.title = title
        self.start = start
        self.steps: list[Step] = []
        self.external_cause: ExternalCause | NodeLost | None = None

    def __str__(self) -> str:
        """Return the title, which names the test."""
        return self.title

    def when(self, *events: Event) -> Self:
        """Add the next events; no action follows unless ``then`` adds it."""
        self.steps.append((events, ()))
        return self

    def then(self, *actions: Action | tuple[Action, ...]) -> Self:
        """Add the actions for the last events: exactly these, in this order."""
        events, _ = self.steps[-1]
        groups = [action if isinstance(action, tuple) else (action,) for action in actions]
        self.steps[-1] = events, tuple(action for some in groups for action in some)
        return self

    def because(self, external_cause: ExternalCause | NodeLost) -> Self:
        """Set the external cause; without this call there must be none."""
        self.external_cause = external_cause
        return self

    def as_decided(self) -> list[Step]:
        """Return the same events with what the policy does about them."""
        state = self.start
        steps: list[Step] = []
        for events, _ in self.steps:
            state, actions = answer(state, *events)
            steps.append((events, actions))
        return steps

    def last_state(self) -> Attempt:
        """Return what the policy has made of it all."""
        return answer(self.start, *(event for events, _ in self.steps for event in events))[0]


def history(title: str, start: Attempt) -> History:
    """Begin a history."""
    return History(title, start)


def answer(state: Attempt, *events: Event) -> tuple[Attempt, tuple[Action, ...]]:
    """Return what the policy makes of ``events``, and all that it wants done about them.

    On a single node the coordinator answers at once, and what is reported to it is left out.
    """
    done: list[Action] = []
    for event in events:
        state, actions = decide(state, event)
        if state.nodes == 1:
            actions = tuple(action for action in actions if not _reports(action))
        done += actions
        if state.nodes == 1 and state.phase is Phase.WAITING:
            state, actions = decide(state, verdict_on(state))
            done += actions
    return state, tuple(done)


def _reports(action: Action) -> bool:
    """Tell whether the verdict follows from what this reports."""
    if isinstance(action, SendToCoordinator):
        return isinstance(action.message, EndedExternally | Done)
    return isinstance(action, ReportFailure | ReportEnd)


def external_cause_of(state: Attempt) -> ExternalCause | NodeLost | None:
    """Return what ended an attempt from outside its workers, if it is over as it is now."""
    if state.nodes > 1:
        return state.node_zero_lost or state.external_cause
    match verdict_on(state).message:
        case Verdict(reason) if isinstance(reason, ExternalCause):
            return reason
    return None


def verdict_on(state: Attempt) -> CoordinatorSent:
    """Return the coordinator's answer to a single node, if no more happens to its workers."""
    size = len(state.ended) + len(state.alive)
    fates = fates_of(state, plan_of(size), {}, {}, 0.0)
    limit = state.failing.max_restarts if isinstance(state, OneAttempt) else 0
    clock = FakeClock()
    described = job(master_port=29500, max_restarts=limit)
    node = SingleNode(described, "node7", size, notice=print, clock=clock.monotonic)
    own = (fate for fate in fates if not fate.ending.succeeded and not fate.stopped_by_us)
    for failed in islice(own, 1):
        clock.now = failed.clock
        node.send(FirstFailure(0, failed, 0.0))
    if isinstance(state.external_cause, Interrupted | OutputGone):
        clock.now = state.external_cause_at
        node.send(EndedExternally(0, state.external_cause))
    clock.now = 1000.0
    [*_, verdict] = node.send(done(0, fates, clock.now, state.external_cause))
    assert isinstance(verdict, CoordinatorSent)
    return verdict
