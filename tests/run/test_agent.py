"""The agent's loop: what belongs to the attempt that begins, and what goes before other events.

What becomes of its actions is shown by jobs: see tests/contract/ends.
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.loop import NEVER, Loop
from clusterrun.planning.plan import NodePlan, World
from clusterrun.policy import actions
from clusterrun.policy.actions import WorkersAction
from clusterrun.policy.events import CoordinatorSent, Event, NoLeftovers, QueryEvent, QueryReceived
from clusterrun.policy.messages import (
    AgentMessage,
    Done,
    EndedExternally,
    FirstFailure,
    GivenUp,
    NextAttempt,
    Order,
    PrintStacks,
    Stop,
    Verdict,
)
from clusterrun.policy.node import SECONDS_AFTER_SIGKILL, Attempt
from clusterrun.policy.outcome import Exited, NodeLost, Outcome, Succeeded
from clusterrun.run.agent import Agent
from clusterrun.run.attempts import JobProgress

from tests.plans import job as described
from tests.plans import plan_of, world
from tests.run.attempt_events import (
    FORK_SERVER_LOST,
    cleaned_up,
    exited,
    killed,
    printed,
    signal_received,
    started,
)

GRACE = 25.0
OVER = Verdict(Succeeded(), "")
AGAIN = NextAttempt(world(2, attempt=1), NodeLost(1, "n1"))
STOP = Stop(1, "node9 fails")

Reported = Sequence[Event | float]
"""Events; a number is the seconds until those that follow."""

WELL: Reported = [started(0), started(1), exited(0), exited(1)]
BADLY: Reported = [started(0), started(1), exited(1, 3)]
RUNS: Reported = [started(0), started(1)]
DIES: Reported = [killed(0, signal.SIGTERM)]
BOTH_DIE: Reported = [killed(0, signal.SIGTERM), killed(1, signal.SIGTERM)]


class ScriptedLoop(Loop[Event]):
    """A loop in which nothing is waited for: time passes as is reported."""

    def __init__(self) -> None:
        """Begin 50 s after the start of this machine."""
        super().__init__(lambda: self.now)
        self.now = 50.0
        self._reported: list[Event | float] = []

    def report(self, *reported: Event | float) -> None:
        """Have these happen in the next turn."""
        self._reported += reported

    def turn(self, until: float = NEVER) -> None:
        assert self._reported, f"nothing happens until {until}"
        for each in self._reported:
            if isinstance(each, float):
                self.now += each
            else:
                self.add([each])
        self._reported.clear()


class ScriptedJob:
    """All that an agent of two workers works with: records what it is asked, and answers as set."""

    def __init__(self) -> None:
        self.loop = ScriptedLoop()
        self.progress = JobProgress(0.0)
        self.performed: list[WorkersAction] = []
        """In the last attempt."""
        self.shown: list[str] = []
        """Notices, and stacks."""
        self.sent: list[AgentMessage] = []
        self.kills_read = 0
        self.between_attempts: list[Event] = []
        """What happens once the first attempt has ended."""
        self._starts: deque[Reported] = deque()
        self._ends: deque[Reported] = deque()
        self._cleanups: deque[Reported] = deque()
        self._answers: deque[Sequence[Order]] = deque()

    def run(self, *starts: Reported, **follows: Any) -> Outcome:
        """Return how the job ends; see ``runs``."""
        outcome = self.runs(*starts, **follows)
        assert outcome is not None
        return outcome

    def runs(
        self,
        *starts: Reported,
        ends: Iterable[Reported] = (),
        cleanups: Iterable[Reported] = (),
        answers: Iterable[Sequence[Order]] = ([OVER],),
    ) -> Outcome | None:
        """Return how the job ends; None: the job continues without this node.

        Args:
            starts: what is reported of the workers of each attempt.
            ends: what follows each signal to workers.
            cleanups: what each cleanup reports; afterwards, that nothing is left.
            answers: the coordinator's, to each end of this node's workers.

        """
        self._starts += starts
        self._ends += ends
        self._cleanups += cleanups
        self._answers += answers
        fakes: Any = (self, self, self, self)
        return Agent(*fakes, loop=self.loop, wall_clock=lambda: 1050.0).run(world(2))

    @property
    def signalled(self) -> list[actions.SignalWorkers]:
        """The signals to workers in the last attempt."""
        return [each for each in self.performed if isinstance(each, actions.SignalWorkers)]

    # The attempts.

    def begin(self, world: World) -> Attempt:
        plan = plan_of(2, attempt=world.attempt)
        return Attempt(described(shutdown_timeout=GRACE), plan, foreground=False)

    def record_changes(self, attempt: Attempt, at: float) -> None:
        """Keep no record."""

    def oom_kills(self) -> str:
        self.kills_read += 1
        return "the OOM killer struck once"

    def attempt_failed(self, outcome: Outcome) -> None:
        assert outcome.attempt == 0
        self.loop.add(self.between_attempts)

    # The workers.

    def start(self, plan: NodePlan, _local_ranks: frozenset[LocalRank]) -> None:
        del self.performed[:]
        self.loop.report(*self._starts.popleft())

    def start_pending(self) -> None:
        pytest.fail("there is no fork server")

    def perform(self, action: WorkersAction) -> None:
        self.performed.append(action)
        match action:
            case actions.PrintNotice(text):
                self.shown.append(text)
            case actions.SignalWorkers() if self._ends:
                self.loop.report(*self._ends.popleft())
            case actions.CollectOutput(local_rank):
                self.loop.report(printed(local_rank))
            case actions.AwaitLeftovers():
                self.loop.report(NoLeftovers(at=10.0))
            case actions.CleanUp():
                self.loop.report(*(self._cleanups.popleft() if self._cleanups else [cleaned_up()]))

    def reap(self) -> None:
        pytest.fail("no child has ended")

    def pause(self) -> None:
        pytest.fail("nobody has stopped us")

    def logs(self, plan: NodePlan) -> Mapping[LocalRank, str]:
        return {worker.local_rank: "" for worker in plan.workers}

    # The other nodes.

    def node_zero_time(self, age: float) -> float:
        """Return a time by node 0's clock, which is 300 s ahead."""
        return self.loop.clock() + 300.0 - age

    def send(self, message: AgentMessage) -> Iterable[Event]:
        self.sent.append(message)
        if not isinstance(message, Done):
            return ()
        return [CoordinatorSent(order, at=10.0) for order in self._answers.popleft()]

    # Queries.

    def take(self, event: QueryEvent) -> Iterable[Event]:
        raise AssertionError("no query comes")

    def collect_stacks(self, now: float) -> Iterable[Event]:
        return ()

    def print_stacks(self, text: str) -> None:
        self.shown.append(text)


@pytest.fixture
def job() -> Iterator[ScriptedJob]:
    """Return a job that the test still has to tell."""
    made = ScriptedJob()
    yield made
    made.loop.close()


def test_signal_between_attempts_stops_the_next_one(job: ScriptedJob) -> None:
    """Its workers are asked to end at once."""
    job.between_attempts = [signal_received(signal.SIGTERM)]

    job.run(BADLY, RUNS, ends=[DIES, BOTH_DIE], answers=[[AGAIN], [OVER]])

    [each] = job.signalled
    assert sorted(each.local_ranks) == [0, 1]
    assert each.number == signal.SIGTERM


def test_restart_and_verdict_at_once_end_the_job(job: ScriptedJob) -> None:
    """The agent was frozen; it does not wait for messages that will not come."""
    outcome = job.run(WELL, RUNS, ends=[BOTH_DIE], answers=[[AGAIN, STOP, OVER], []])

    assert (outcome.attempt, outcome.reason) == (1, Succeeded())


def test_stop_of_the_next_attempt_is_kept(job: ScriptedJob) -> None:
    """It arrives together with the restart, and must not be dropped with the messages before."""
    outcome = job.run(BADLY, RUNS, ends=[DIES, BOTH_DIE], answers=[[AGAIN, STOP], [OVER]])

    assert outcome.attempt == 1
    assert len(job.signalled) == 1


def test_helper_lost_between_attempts_ends_the_next_one(job: ScriptedJob) -> None:
    """The loss is reported only once, with the last events of the previous attempt."""
    cleanup: Reported = [printed(0), printed(1), cleaned_up(), FORK_SERVER_LOST]

    job.run(BADLY, [], ends=[DIES], cleanups=[cleanup], answers=[[AGAIN], [OVER]])

    [_, first, lost, second] = job.sent
    assert isinstance(first, Done)
    assert isinstance(lost, EndedExternally)
    assert isinstance(second, Done)
    assert [first.attempt, lost.attempt, second.attempt] == [0, 1, 1]


def test_late_event_of_the_previous_attempt_is_ignored(job: ScriptedJob) -> None:
    """A worker that could not be killed dies at last, and is not mistaken for its successor."""
    cleanup: Reported = [printed(1), cleaned_up("pid 100"), killed(0, signal.SIGKILL)]

    outcome = job.run(
        *(BADLY, WELL),
        ends=[[GRACE], [SECONDS_AFTER_SIGKILL]],
        cleanups=[cleanup],
        answers=[[AGAIN], [OVER]],
    )

    assert job.signalled == []
    assert [result.exit_status for result in outcome.results] == [Exited(0), Exited(0)]
    # The monotonic clock was at 50 s when the other was at 1050.
    assert [result.clock for result in outcome.results] == [1010.0, 1010.0]


@pytest.mark.parametrize(
    ("start", "ends"),
    [
        (BADLY, [[exited(0, 1)]]),
        ([started(0), started(1), killed(1, signal.SIGKILL)], [[exited(0, 1)]]),
        ([started(0), started(1), exited(0), exited(1, 3)], []),
    ],
    ids=["exit code", "signal", "after a success"],
)
def test_oom_counters_are_read_at_the_first_failure(
    job: ScriptedJob, start: Reported, ends: Sequence[Reported]
) -> None:
    """Later they may include other kills."""
    outcome = job.run(start, ends=ends)

    assert job.kills_read == 1
    assert [result.out_of_memory for result in outcome.results] == [
        "",
        "the OOM killer struck once",
    ]


def test_failure_and_end_are_sent_with_node_zeros_time(job: ScriptedJob) -> None:
    """The failure at once, the end when all results are known."""
    job.run(BADLY, ends=[DIES])

    failure, end = job.sent
    assert isinstance(failure, FirstFailure)
    assert (failure.result.rank, failure.result.exit_status, failure.at) == (1, Exited(3), 310.0)
    assert isinstance(end, Done)
    assert [(each.result.rank, each.at) for each in end.results] == [(1, 310.0), (0, 310.0)]
    assert not end.lease_expired


def test_given_up_agent_returns_no_outcome(job: ScriptedJob) -> None:
    """It rejoins, and the job has no outcome yet."""
    given_up = GivenUp("has been silent for 18 s")
    start: Reported = [started(0), exited(1), killed(0, signal.SIGKILL, by_lease=True)]

    assert job.runs(start, answers=[[given_up]]) is None
    assert job.progress.rejoins_since is not None

    [end] = [each for each in job.sent if isinstance(each, Done)]
    assert end.lease_expired


def test_stacks_are_printed_before_later_events(job: ScriptedJob) -> None:
    """The stacks of a hang are above the line that says so."""
    stop = CoordinatorSent(Stop(0, "no rank has printed or exited for 60 s"), at=10.0)

    job.run([*RUNS, QueryReceived(PrintStacks("in train"), 10.0), stop], ends=[BOTH_DIE])

    notice = next(each for each in job.performed if isinstance(each, actions.PrintNotice))
    assert job.shown == ["in train", notice.text]
