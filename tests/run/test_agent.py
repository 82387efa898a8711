"""The agent's loop: events become actions, and actions become calls."""

import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from free_ports import free_port

from tests.plans import job, world
from tests.run.attempts import (
    FakeAttempts,
    FakeLooks,
    FakeLoop,
    FakePeers,
    FakeSource,
    FakeWorkers,
)
from tests.run.clock import FakeClock
from tests.run.door import (
    ON_NODE_ZERO,
    SECONDS_TO_CLEAN_UP,
    SECONDS_TO_DIE,
    Agent,
    ChildEnded,
    End,
    Event,
    Exited,
    HelperFailed,
    Interrupted,
    Killed,
    LocalRank,
    LookOrdered,
    MissingNode,
    NodeLost,
    OneNode,
    Outcome,
    Rank,
    SignalReceived,
    Stop,
    Succeeded,
    WorkerEnded,
    WorkersAction,
    WorkerStopped,
    World,
    actions,
    wait_for_world,
)
from tests.run.happenings import (
    FORK_SERVER_LOST,
    exited,
    got,
    killed,
    printed,
    sent,
    started,
    swept,
)

GRACE = 25.0
WORLD = world(1)

WELL: list[Event | float] = [started(0), started(1), exited(0), exited(1)]
BADLY: list[Event | float] = [started(0), started(1), exited(1, 3)]
DIES: list[Event | float] = [killed(0, signal.SIGTERM)]


class Supervised(NamedTuple):
    """An agent, and the fakes that it works with."""

    clock: FakeClock
    loop: FakeLoop
    signals: FakeSource
    peers: FakePeers
    attempts: FakeAttempts

    def play(self, **answers: list[list[Event | float]]) -> FakeWorkers:
        """Return workers that answer so."""
        return FakeWorkers(self.loop, **answers)

    def run(self, played: FakeWorkers, **of_the_job: Any) -> Outcome:
        """Supervise these workers until the job, which has one node, is over."""
        described = job(master_port=free_port(), **of_the_job)
        node = OneNode(described, "node7", 2, played.say, self.loop)
        try:
            first = wait_for_world(node, self.loop, None)
            assert isinstance(first, World)
            return self._run(played, node, first)
        finally:
            node.leave()

    def run_as_one_of_several(self, played: FakeWorkers) -> Outcome:
        """Supervise these workers until the job, which has other nodes, is over."""
        return self._run(played, self.peers)

    def _run(
        self, played: FakeWorkers, peers: OneNode | FakePeers, first: World = WORLD
    ) -> Outcome:
        fakes: Any = (self.attempts, played, peers, FakeLooks())
        return Agent(*fakes, loop=self.loop, wall_clock=self.clock.time).run(first)


@pytest.fixture
def agent() -> Iterator[Supervised]:
    """Return an agent whose workers the test still has to play."""
    clock = FakeClock()
    loop = FakeLoop(clock)
    yield Supervised(clock, loop, loop.fake(Rank.SIGNALS), FakePeers(loop), FakeAttempts())
    loop.close()


def test_a_job_that_succeeds(agent: Supervised) -> None:
    """Start, output, cleanup, end."""
    played = agent.play(start=[WELL])

    outcome = agent.run(played)

    assert outcome.reason == Succeeded()
    assert played.calls == [("start", 0), ("collect", 0), ("collect", 1), ("sweep",)]


def test_a_signal_between_two_attempts(agent: Supervised) -> None:
    """It meets the next attempt, whose workers are asked to end at once."""

    class Interrupting(FakeAttempts):
        def failed(self, outcome: Outcome) -> None:
            super().failed(outcome)
            agent.signals.report(got(signal.SIGTERM))

    end: list[Event | float] = [killed(0, signal.SIGTERM), killed(1, signal.SIGTERM)]
    played = agent.play(start=[BADLY], signal=[DIES, end])

    outcome = agent._replace(attempts=Interrupting()).run(played, max_restarts=5)

    assert outcome.reason == Interrupted(signal.SIGTERM)
    assert played.calls[-4] == ("signal", [0, 1], signal.SIGTERM, "worker")


def test_a_job_that_ends_while_this_agent_was_frozen(agent: Supervised) -> None:
    """It reads the restart and the verdict at once: it does not wait for what will not come."""
    agent.peers.again, agent.peers.stop_again, agent.peers.over_again = 1, True, True
    agent.peers.verdict = NodeLost(1, "node9")
    end: list[Event | float] = [killed(0, signal.SIGTERM), killed(1, signal.SIGTERM)]
    played = agent.play(start=[WELL, [started(0), started(1)]], signal=[end])

    outcome = agent.run_as_one_of_several(played)

    assert outcome.reason == NodeLost(1, "node9")
    assert len(played.called("start")) == 2


def test_a_deadline_that_was_met_just_in_time(agent: Supervised) -> None:
    """The end and its deadline come in one moment: what is waited for then has all its time."""
    played = agent.play(start=[BADLY], signal=[[GRACE, *DIES]], sweep=[[swept("pid 9 (python)")]])

    outcome = agent.run(played)

    assert outcome.survivors == ("pid 9 (python)",)


def test_the_next_attempt_does_not_inherit_a_deadline(agent: Supervised) -> None:
    """A sweep that was waited for in the first attempt is no hurry in the second."""
    late = [SECONDS_TO_CLEAN_UP, *BADLY]
    played = agent.play(start=[BADLY, late], signal=[DIES, DIES])

    outcome = agent.run(played, max_restarts=1)

    assert (outcome.attempt, outcome.exit_code) == (1, 3)
    assert played.called("signal") == [("signal", [0], signal.SIGTERM, "worker")] * 2


def test_what_is_done_about_signals(agent: Supervised) -> None:
    """Each signal leads to its own call."""
    played = agent.play(
        start=[
            [
                started(0),
                started(1),
                got(signal.SIGUSR1),
                got(signal.SIGTSTP),
                WorkerStopped(LocalRank(0), signal.SIGTSTP, at=10.0),
                got(signal.SIGCONT),
            ]
        ],
        resume=[[SignalReceived(signal.SIGINT, at=60.0)]],
        signal=[[exited(0, 130), exited(1, 130)]],
    )

    outcome = agent.run(played)

    notice = (
        "interrupted: stopping 2 workers (grace 25 s, Ctrl-C again kills at once); exit code 130"
    )
    assert outcome.reason == Interrupted(signal.SIGINT)
    assert played.calls[:7] == [
        ("start", 0),
        ("forward", signal.SIGUSR1),
        ("pause",),
        ("resume",),
        ("interrupted",),
        ("say", f"clusterrun: {notice}"),
        ("signal", [0, 1], signal.SIGINT, "worker"),
    ]


def test_ended_children_are_reaped(agent: Supervised) -> None:
    """Whenever SIGCHLD has come, though nothing else has happened."""

    class Reaped(FakeWorkers):
        def reap(self) -> None:
            super().reap()
            self.server.report(*WELL)

    played = Reaped(agent.loop)
    agent.signals.report(ChildEnded(at=10.0))

    agent.run(played)

    assert played.called("reap") == [("reap",)]


def test_without_a_fork_server_workers_are_swept_at_once(agent: Supervised) -> None:
    """What it would have reported comes too late."""

    class Losing(FakeWorkers):
        def perform(self, action: WorkersAction) -> None:
            if action == actions.CleanUp():
                agent.loop.add([swept(), printed(0), printed(1)])
            else:
                super().perform(action)

    played = Losing(agent.loop, start=[[started(0), FORK_SERVER_LOST]])

    outcome = agent.run(played)

    assert (outcome.exit_code, outcome.survivors) == (137, ())


@pytest.mark.parametrize(
    "first",
    [exited(1, 3), WorkerEnded(LocalRank(1), Killed(signal.SIGKILL), at=10.0)],
)
def test_the_oom_counters_are_read_at_the_first_failure(agent: Supervised, first: Event) -> None:
    """Later they may count other kills."""
    attempts = FakeAttempts(oom_kills="the OOM killer struck once")
    played = agent.play(start=[[started(0), started(1), first]], signal=[[exited(0, 1)]])

    outcome = agent._replace(attempts=attempts).run(played)

    assert attempts.asked_for_evidence == 1
    assert [fate.out_of_memory for fate in outcome.fates] == ["", "the OOM killer struck once"]


def test_a_success_does_not_read_the_oom_counters(agent: Supervised) -> None:
    """Its counters are not read."""
    agent.run(agent.play(start=[WELL]))

    assert agent.attempts.asked_for_evidence == 0


def test_ends_have_wall_clock_times(agent: Supervised) -> None:
    """Events are dated by the monotonic clock, at which the machine was 50 s old."""
    outcome = agent.run(agent.play(start=[WELL]))

    assert [fate.clock for fate in outcome.fates] == [1_010.0, 1_010.0]
    assert [fate.ending for fate in outcome.fates] == [Exited(0), Exited(0)]


def test_helpers_lost_between_two_attempts(agent: Supervised) -> None:
    """Their loss is reported once, with the last events of the attempt before."""
    played = agent.play(
        start=[BADLY], signal=[DIES], sweep=[[printed(0), printed(1), swept(), FORK_SERVER_LOST]]
    )

    outcome = agent.run(played, max_restarts=1)

    assert isinstance(outcome.reason, HelperFailed)
    assert len(agent.attempts.failures) == 1


def test_late_news_of_the_attempt_before(agent: Supervised) -> None:
    """A worker that could not be killed dies at last, and is not mistaken for its successor."""
    late = killed(0, signal.SIGKILL)
    played = agent.play(
        start=[BADLY, WELL],
        signal=[[GRACE], [SECONDS_TO_DIE]],
        sweep=[[printed(1), swept("pid 100"), late]],
    )

    outcome = agent.run(played, max_restarts=1)

    assert outcome.reason == Succeeded()
    assert len(played.called("signal")) == 2


def test_other_nodes_receive_failure_and_end(agent: Supervised) -> None:
    """The failure at once, with its age; the end when all is known. They reach the verdict."""
    played = agent.play(start=[BADLY], signal=[DIES])
    agent.peers.verdict = NodeLost(3, "node9")

    outcome = agent.run_as_one_of_several(played)

    assert agent.peers.calls == [
        ("first_failure", 1, Exited(3), 40.0),
        ("done", [(1, 40.0), (0, 40.0)], None),
    ]
    assert outcome.reason == NodeLost(3, "node9")


def test_stacks_are_shown_before_what_came_after_them(agent: Supervised) -> None:
    """A hang ends the job: its stacks are above the line that says so."""
    played = agent.play(start=[[started(0), started(1)]], signal=[[exited(0), exited(1)]])
    end = End(ON_NODE_ZERO, (MissingNode(0, "node7", "does not answer"),))
    stop = sent(Stop(0, "no rank has printed or exited for 60 s"))
    agent.peers.coordinator.report(LookOrdered(end, 10.0), stop)

    agent.run_as_one_of_several(played)

    assert [call[0] for call in played.calls if call[0] in {"show_stacks", "say"}] == [
        "show_stacks",
        "say",
    ]


def test_an_order_to_stop_may_arrive_with_the_order_to_restart(agent: Supervised) -> None:
    """It is for the next attempt, and must not be dropped with the one before."""
    played = agent.play(
        start=[BADLY, [started(0), started(1)]], signal=[DIES, [exited(0), exited(1)]]
    )
    agent.peers.again = 1
    agent.peers.stop_again = True

    outcome = agent.run_as_one_of_several(played)

    assert outcome.attempt == 1
    assert len(played.called("signal")) == 2
