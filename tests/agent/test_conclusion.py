"""What becomes of an attempt's last state."""

import signal

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    Attempt,
    Event,
    Evidence,
    Exited,
    HelperFailed,
    Interrupted,
    Killed,
    LocalRank,
    Outcome,
    OutputGone,
    Phase,
    Reason,
    Succeeded,
    WorkerExited,
    WorkerFailed,
    WorkerKilled,
    conclude,
    exit_code_of,
    fates_of,
)
from tests.agent.histories import (
    FORK_SERVER_LOST,
    READER_GONE,
    answer,
    exited,
    got,
    killed,
    printed,
    started,
    swept,
    verdict_on,
    workers,
)
from tests.agent.node_plans import plan_of
from tests.decided import decide

EPOCH = 1_790_000_000.0


def concluded(state: Attempt) -> Outcome:
    """Return the outcome of an attempt without evidence and logs."""
    if state.verdict is None:
        state, _ = decide(replace(state, phase=Phase.WAITING), verdict_on(state))
    return conclude(state, 0, fates_of(state, plan_of(2), {}, {}, EPOCH))


def test_all_that_is_known_of_a_worker() -> None:
    """From the plan, from the events, from the clock, from the relay."""
    state, _ = answer(
        workers(2),
        started(0),
        started(1),
        exited(1, 3),
        killed(0, signal.SIGTERM),
        printed(1, "boom"),
        printed(0),
        swept("pid 9 (python, state D in nfs_wait)"),
    )

    fates = fates_of(
        state,
        plan_of(2, attempt=4, first_rank=8),
        evidence={LocalRank(1): Evidence("the OOM killer struck")},
        logs={LocalRank(1): "logs/rank-9.err"},
        epoch=EPOCH,
    )
    outcome = conclude(replace(state, verdict=WorkerFailed(fates[0])), 4, fates)

    first, second = outcome.fates
    assert (outcome.attempt, outcome.survivors) == (4, ("pid 9 (python, state D in nfs_wait)",))
    assert (second.rank, second.local_rank, second.host, second.pid) == (9, 1, "node7", 101)
    assert (second.ending, second.stopped_by_us) == (Exited(3), False)
    assert (second.clock, second.ran_for) == (EPOCH + 10.0, 9.0)
    assert (second.tail, second.log) == ("boom", "logs/rank-9.err")
    assert second.out_of_memory == "the OOM killer struck"
    assert (first.rank, first.ending, first.stopped_by_us) == (8, Killed(signal.SIGTERM), True)
    assert (first.tail, first.log, first.out_of_memory) == ("", "", "")
    assert outcome.reason == WorkerFailed(second)


def test_an_attempt_without_a_reason_is_not_over() -> None:
    """It would be a mistake of the policy's."""
    with pytest.raises(AssertionError, match="an attempt ends by"):
        conclude(workers(1), 0, ())


def test_all_succeeded() -> None:
    """The only way to exit code 0."""
    state, _ = answer(workers(2), started(0), started(1), exited(1), exited(0))

    outcome = concluded(state)

    assert (outcome.reason, outcome.exit_code) == (Succeeded(), 0)
    assert [fate.rank for fate in outcome.fates] == [0, 1]


def test_the_cause_is_whoever_ended_first() -> None:
    """Among equals the order of the ends decides, not the rank."""
    state, _ = answer(workers(2), started(0), started(1), exited(1, 7), exited(0, 5))

    assert concluded(state).exit_code == 7


def test_a_worker_that_never_ran() -> None:
    """It has no process, and it ran for no time."""
    state, _ = answer(workers(2), started(0), FORK_SERVER_LOST)

    never = concluded(state).fates[1]

    assert (never.pid, never.ran_for) == (0, 0.0)


@pytest.mark.parametrize(
    ("event", "reason", "exit_code"),
    [
        (got(signal.SIGTERM), Interrupted(signal.SIGTERM), 143),
        (READER_GONE, OutputGone(), 141),
        (
            FORK_SERVER_LOST,
            HelperFailed("fork server", "was killed by SIGKILL", signal.SIGKILL),
            137,
        ),
    ],
)
def test_what_came_from_outside_is_the_reason(event: Event, reason: Reason, exit_code: int) -> None:
    """However the workers ended because of it."""
    state, _ = answer(workers(2), started(0), started(1), event, exited(0, 1), exited(1))

    outcome = concluded(state)

    assert (outcome.reason, outcome.exit_code) == (reason, exit_code)


@pytest.mark.parametrize("ending", [exited(0, 7), killed(0, signal.SIGSEGV)])
def test_a_failure_before_the_signal_that_ended_the_job(ending: Event) -> None:
    """The restart was near when Ctrl-C came: the failure is still to be explained."""
    state, _ = answer(
        workers(2, restarts=1), started(0), started(1), ending, got(signal.SIGINT), exited(1, 9)
    )

    outcome = concluded(state)

    assert (outcome.reason, outcome.exit_code) == (Interrupted(signal.SIGINT), 130)
    assert outcome.failure == outcome.cause == outcome.fates[0]


def test_what_the_signal_itself_did_is_no_failure_before_it() -> None:
    """A scheduler signals all processes at once, a worker first."""
    events: list[Event] = [killed(0, signal.SIGTERM), got(signal.SIGTERM), exited(1, 1)]
    state, _ = answer(workers(2, restarts=1), started(0), started(1), *events)

    assert concluded(state).cause is None


def test_a_failure_is_dated_by_when_it_left_the_script() -> None:
    """Exit handlers hold its end back; a peer that fails for want of it has ended before."""
    echo = WorkerExited(LocalRank(0), 1, at=10.0)
    held_back = WorkerExited(LocalRank(1), 3, at=12.0, since_failure=2.5)
    state, _ = answer(workers(2), started(0), started(1), echo, held_back)

    outcome = concluded(state)

    assert [fate.clock - EPOCH for fate in outcome.fates] == [10.0, 9.5]
    assert [fate.stopped_by_us for fate in outcome.fates] == [False, False]
    assert outcome.exit_code == 3


def test_a_failure_that_we_brought_about_is_none_of_its_own() -> None:
    """It left the script after we had asked the worker to end."""
    cause = WorkerExited(LocalRank(0), 1, at=10.0)
    later = WorkerExited(LocalRank(1), 3, at=12.0, since_failure=1.5)
    state, _ = answer(workers(2), started(0), started(1), cause, later)

    outcome = concluded(state)

    assert [fate.stopped_by_us for fate in outcome.fates] == [False, True]
    assert outcome.exit_code == 1


TRACEBACK = "Traceback (most recent call last):\n  File x, line 1\nValueError: it\n"


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        (TRACEBACK, 1),
        (f"{TRACEBACK}\n{TRACEBACK}", 1),
        ("".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()), 1),
        (f"{TRACEBACK}Exception ignored in: <Store>\n{TRACEBACK}", 1),
        (f"Exception ignored in: <Store>\n{TRACEBACK}", 143),
        (f"{TRACEBACK}epoch 2\n", 143),
        ("", 143),
    ],
)
def test_a_worker_that_took_itself_apart_when_our_signal_came(tail: str, code: int) -> None:
    """It had failed by itself: its peers, the echoes, were only quicker to end."""
    echo = "Traceback (most recent call last):\n  File x\nConnectionError: closed by peer\n"
    events: list[Event] = [started(0), started(1), exited(0, 9), killed(1, signal.SIGTERM)]
    state, _ = answer(workers(2), *events, printed(0, echo), printed(1, tail))

    outcome = concluded(state)

    assert [exit_code_of(fate.ending) for fate in outcome.fates] == [9, code]
    assert [fate.stopped_by_us for fate in outcome.fates] == [False, True]


def test_a_worker_that_says_what_it_was_ending_with() -> None:
    """Its own exit code counts, and when it failed, not our signal."""
    apart = WorkerKilled(LocalRank(1), signal.SIGTERM, at=12.0, since_failure=2.5, code=3)
    state, _ = answer(workers(2), started(0), started(1), exited(0, 9), apart)

    outcome = concluded(state)

    assert outcome.exit_code == 3
    assert [fate.stopped_by_us for fate in outcome.fates] == [False, False]
