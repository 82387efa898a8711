"""What a waiting node does on each event, from node 0's first message to its world."""

from signal import SIGCONT, SIGINT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.policy import actions, events, messages, outcome
from clusterrun.policy.node import Attempt
from clusterrun.policy.waiting import WaitingNode
from clusterrun.signals import SignalReceived

from tests.plans import job, plan_of, world

WORLD = world(2)
VERDICT = messages.Verdict(outcome.NodeLost(2, "n2"), "no node is left")
NOW = 100.0
RANK = LocalRank(0)

# Events.

JOINED = events.WorldJoined(WORLD, NOW)
AWAITED = events.WaitListed(NOW)
POSSIBLE = events.CoordinatorSent(messages.SuspensionPossible(), NOW)
WANTED = events.SuspensionRequested("clusterrun suspend", NOW)
READY = events.ForkServerReady("", (), NOW)

# What is done.

NOTHING = None


def signal(number: int, later: float = 0.0) -> events.Event:
    return SignalReceived(number, NOW + later)


def request(by: str) -> actions.SendToCoordinator:
    return actions.SendToCoordinator(messages.RequestSuspension(by))


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (JOINED, WORLD),
        (signal(SIGINT), outcome.Interrupted(SIGINT)),
        (signal(SIGTERM), outcome.Interrupted(SIGTERM)),
        (
            events.StopRequested("clusterrun stop", at_once=True, at=NOW),
            outcome.Interrupted(SIGTERM),
        ),
        (
            events.HelperLost("relay", "was killed by SIGKILL", 9, NOW),
            outcome.HelperFailed("relay", "was killed by SIGKILL", 9),
        ),
        (events.NodeChecked("GPU 3 is lost", NOW), events.NodeChecked("GPU 3 is lost", NOW)),
        (events.CoordinatorSent(VERDICT, NOW), VERDICT),
        (
            events.CoordinatorLost(outcome.NodeLost(0, "n0"), NOW),
            messages.Verdict(outcome.NodeLost(0, "n0", "is gone"), ""),
        ),
    ],
)
@pytest.mark.parametrize("before", [(), (AWAITED,)])
def test_event_ends_wait(
    before: tuple[events.Event, ...], event: events.Event, end: object
) -> None:
    """Whether the job runs already or waits for all nodes."""
    waiting = WaitingNode(SIGUSR1)
    for each in before:
        waiting.handle(each)
    began = waiting.end

    assert began is None
    assert waiting.handle(event) is NOTHING
    assert waiting.end == end
    assert waiting.kept == []


@pytest.mark.parametrize(
    ("event", "done", "is_kept"),
    [
        (signal(SIGTSTP), actions.Pause(), False),
        # The request of its scheduler, which the first attempt is to know.
        (signal(SIGUSR1), NOTHING, True),
        # There is no worker to forward it to.
        (signal(SIGUSR2), NOTHING, False),
        (signal(SIGCONT), NOTHING, False),
        # What the agent is to know once it has workers.
        (READY, NOTHING, True),
        (events.CoordinatorSent(messages.Stop(0, "because"), NOW), NOTHING, True),
        (POSSIBLE, NOTHING, True),
        (WANTED, NOTHING, True),
        (AWAITED, NOTHING, False),
    ],
)
def test_event_does_not_end_wait(event: events.Event, done: object, is_kept: bool) -> None:
    """The first attempt handles it later, or not."""
    waiting = WaitingNode(SIGUSR1)

    assert waiting.handle(event) == done
    assert waiting.end is None
    assert waiting.kept == ([event] if is_kept else [])


@pytest.mark.parametrize(
    ("happened", "done", "end"),
    [
        # The suspend signal goes to the coordinator as often as it comes.
        ([AWAITED, signal(SIGUSR1)], request("SIGUSR1"), None),
        ([AWAITED, signal(SIGUSR1), signal(SIGUSR1)], request("SIGUSR1"), None),
        # SIGTERM asks for a suspension if a rank may be suspended, and ends the second time.
        ([AWAITED, POSSIBLE, signal(SIGTERM)], request("SIGTERM"), None),
        (
            [AWAITED, POSSIBLE, signal(SIGTERM), signal(SIGTERM, 2.0)],
            NOTHING,
            outcome.Interrupted(SIGTERM),
        ),
        # A scheduler's comes twice, by the fork server, too: within a second it is the same one.
        ([AWAITED, POSSIBLE, signal(SIGTERM), signal(SIGTERM, 0.5)], NOTHING, None),
        ([AWAITED, WANTED], request("clusterrun suspend"), None),
        ([AWAITED, POSSIBLE, signal(SIGUSR1), signal(SIGTERM)], request("SIGTERM"), None),
        ([AWAITED, POSSIBLE, signal(SIGINT)], NOTHING, outcome.Interrupted(SIGINT)),
        ([POSSIBLE, signal(SIGTERM)], NOTHING, outcome.Interrupted(SIGTERM)),
        ([AWAITED, signal(SIGTSTP)], actions.Pause(), None),
    ],
)
def test_signals_while_the_job_runs_elsewhere(
    happened: list[events.Event], done: object, end: object
) -> None:
    """The job may be suspended from this node."""
    waiting = WaitingNode(SIGUSR1)
    for event in happened[:-1]:
        waiting.handle(event)
        assert waiting.end is None

    assert waiting.handle(happened[-1]) == done
    assert waiting.end == end


def test_events_are_kept_in_order() -> None:
    """For the first attempt; a signal that went to the coordinator is not kept."""
    waiting = WaitingNode(SIGUSR1)
    save = events.CoordinatorSent(messages.SaveAt(0, 7), NOW)
    for event in (READY, signal(SIGUSR1), AWAITED, signal(SIGUSR1), POSSIBLE, save, JOINED):
        waiting.handle(event)

    assert waiting.kept == [READY, signal(SIGUSR1), POSSIBLE, save]
    assert waiting.end == WORLD


def test_job_without_suspend_signal() -> None:
    """No signal is a request, unless a rank may be suspended."""
    waiting = WaitingNode(None)
    waiting.handle(AWAITED)

    assert waiting.handle(signal(SIGUSR1)) is NOTHING
    assert waiting.kept == []


def test_repeated_suspension_possible_is_kept_once() -> None:
    """No memory grows."""
    waiting = WaitingNode(None)
    for _ in range(100):
        waiting.handle(POSSIBLE)

    assert waiting.kept == [POSSIBLE]


def test_check_is_run_once_between_attempts() -> None:
    """A node checks itself once after an attempt."""
    attempt = Attempt(job(nnodes=2), plan_of(1), foreground=False)
    for event in (
        events.WorkerStarted(RANK, 100, "", NOW),
        events.WorkerEnded(RANK, outcome.Exited(0), NOW),
        events.OutputEnded(RANK, "", "", NOW),
        events.NoLeftovers(NOW),
    ):
        attempt.handle(event)
    asked = events.CoordinatorSent(messages.CheckNode(), NOW)

    assert [attempt.handle(asked) for _ in range(3)] == [[actions.RunCheck()], [], []]


@pytest.mark.parametrize("at_once", [False, True])
def test_workers_that_wait_for_a_service_are_stopped(*, at_once: bool) -> None:
    """None was started: the attempt ends, and nothing is waited for."""
    server = WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())
    service = Service(name="server", where="job.yaml:2", program=server, ready="/health")
    spec = job(nnodes=2, services=(service,))
    attempt = Attempt(spec, plan_of(2), foreground=False)
    stop = messages.Stop(0, "n1 got SIGTERM", outcome.Interrupted(SIGTERM), at_once)

    done = attempt.handle(events.CoordinatorSent(stop, NOW))

    assert actions.CleanUp() in done
