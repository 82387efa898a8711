"""The actions for one event in each phase of an attempt."""

import signal
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    Action,
    Attempt,
    Event,
    ExternalCause,
    HelperFailed,
    Interrupted,
    OutputGone,
    Phase,
    PrintNotice,
)
from tests.agent.histories import (
    ASK_STACKS,
    FINISH,
    FORK_SERVER_LOST,
    GRACE,
    HUSH,
    LAST_WORDS,
    PAUSE,
    READER_GONE,
    RELAY_LOST,
    RESTART,
    RESUME,
    SWEEP,
    TIME_IS_UP,
    answer,
    ask,
    collect,
    exited,
    external_cause_of,
    forward,
    got,
    hand_on,
    kill,
    killed,
    not_started,
    ordered,
    printed,
    started,
    swept,
    workers,
)
from tests.agent.notices import (
    OUTPUT_CLOSED,
    killing,
    stacks_follow,
    stopping,
)

TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
RUNNING, STOPPING, KILLING = Phase.RUNNING, Phase.STOPPING, Phase.KILLING
CLEANING_UP, COLLECTING, OVER = Phase.CLEANING_UP, Phase.COLLECTING, Phase.OVER

FAILING: Sequence[tuple[Phase, Sequence[Event]]] = [
    (RUNNING, [started(0), started(1)]),
    (STOPPING, [exited(1, 3)]),
    (KILLING, [TIME_IS_UP]),
    (CLEANING_UP, [killed(0, signal.SIGKILL)]),
    (COLLECTING, [swept()]),
    (OVER, [printed(0), printed(1)]),
]
"""Worker 1 of two fails, worker 0 has to be killed: it lives in the first three phases."""

SUCCEEDING: Sequence[tuple[Phase, Sequence[Event]]] = [
    (RUNNING, [started(0), started(1)]),
    (CLEANING_UP, [exited(0), exited(1)]),
    (COLLECTING, [swept()]),
    (OVER, [printed(0), printed(1)]),
]

HELPER_LOST = HelperFailed("fork server", "was killed by SIGKILL", signal.SIGKILL)
RELAY_FAILED = HelperFailed("relay", "exited with code 1", 0)

Row = tuple[Phase, Event, tuple[Action, ...], Phase]


def until(
    phase: Phase, how: Sequence[tuple[Phase, Sequence[Event]]] = FAILING, *, restarts: int = 0
) -> Attempt:
    """Return an attempt that has come to ``phase``."""
    state = workers(2, restarts=restarts)
    for reached, events in how:
        state, _ = answer(state, *events)
        assert state.phase is reached
        if reached is phase:
            return state
    raise AssertionError(f"{phase} is not on this way")


@pytest.mark.parametrize(
    ("phase", "actions", "then"),
    [
        (RUNNING, (), RUNNING),
        (STOPPING, (PrintNotice(killing(1, GRACE)), *kill(0)), KILLING),
        (KILLING, SWEEP, CLEANING_UP),
        (CLEANING_UP, (LAST_WORDS,), COLLECTING),
        (COLLECTING, (FINISH,), OVER),
        (OVER, (), OVER),
    ],
)
def test_the_deadline_passes(phase: Phase, actions: tuple[Action, ...], then: Phase) -> None:
    """In each phase, the attempt continues at the deadline."""
    state, done = answer(until(phase), TIME_IS_UP)

    assert (done, state.phase) == (actions, then)


@pytest.mark.parametrize(
    ("phase", "number", "actions", "then"),
    [
        (RUNNING, TERM, (PrintNotice(stopping(TERM, 2, GRACE)), *hand_on(TERM, 0, 1)), STOPPING),
        (RUNNING, HUP, (PrintNotice(stopping(HUP, 2, GRACE)), *hand_on(TERM, 0, 1)), STOPPING),
        (RUNNING, INT, (HUSH, PrintNotice(stopping(INT, 2, GRACE)), *hand_on(INT, 0, 1)), STOPPING),
        (STOPPING, TERM, (), STOPPING),
        (STOPPING, HUP, (), STOPPING),
        (STOPPING, INT, kill(0), KILLING),
        (KILLING, TERM, (), KILLING),
        (KILLING, INT, (), KILLING),
        (CLEANING_UP, TERM, (), CLEANING_UP),
        (CLEANING_UP, INT, (), CLEANING_UP),
        (COLLECTING, TERM, (), COLLECTING),
        (COLLECTING, INT, (), COLLECTING),
        (OVER, TERM, (), OVER),
        (OVER, INT, (), OVER),
    ],
)
def test_a_signal_to_end(
    phase: Phase, number: int, actions: tuple[Action, ...], then: Phase
) -> None:
    """After a failure only a person's Ctrl-C has anything to hurry."""
    state, done = answer(until(phase), got(number, at=20.0))

    assert (done, state.phase) == (actions, then)


@pytest.mark.parametrize("number", [TERM, INT, HUP])
@pytest.mark.parametrize("phase", [STOPPING, KILLING, CLEANING_UP, COLLECTING])
def test_a_signal_to_end_stops_the_restart(phase: Phase, number: int) -> None:
    """A signal between two attempts is for the job."""
    state, _ = answer(until(phase, restarts=1), got(number, at=20.0))
    _, done = let_time_pass(state)

    assert external_cause_of(state) == Interrupted(number)
    assert done[-1] == FINISH


@pytest.mark.parametrize("phase", [STOPPING, KILLING, CLEANING_UP, COLLECTING])
def test_a_signal_after_the_last_failure_is_not_its_cause(phase: Phase) -> None:
    """Without a restart to stop, the failing worker stays the reason."""
    state, _ = answer(until(phase), got(TERM, at=20.0))

    assert external_cause_of(state) is None


@pytest.mark.parametrize("phase", [CLEANING_UP, COLLECTING])
def test_a_signal_after_a_success_changes_nothing(phase: Phase) -> None:
    """All workers have ended with exit code 0: so does the job."""
    state, done = answer(until(phase, SUCCEEDING, restarts=1), got(TERM, at=20.0))

    assert (state.phase, state.external_cause, done) == (phase, None, ())


@pytest.mark.parametrize(
    ("number", "actions"),
    [
        (signal.SIGUSR1, (forward(signal.SIGUSR1),)),
        (signal.SIGUSR2, (forward(signal.SIGUSR2),)),
        (signal.SIGTSTP, (PAUSE,)),
        (signal.SIGCONT, (RESUME,)),
    ],
)
@pytest.mark.parametrize("phase", [RUNNING, STOPPING, KILLING, CLEANING_UP, COLLECTING])
def test_signals_that_end_nothing(phase: Phase, number: int, actions: tuple[Action, ...]) -> None:
    """They mean the same from the first to the last moment."""
    before = until(phase)
    after, done = answer(before, got(number))

    assert (replace(after, signals=before.signals), done) == (before, actions)


def test_stacks_of_the_living_only() -> None:
    """During a grace SIGQUIT shows where those hang that are left."""
    _, done = answer(until(STOPPING), got(signal.SIGQUIT))

    assert done == (PrintNotice(stacks_follow(1)), ASK_STACKS)


@pytest.mark.parametrize("phase", [STOPPING, KILLING, CLEANING_UP, COLLECTING, OVER])
def test_a_reader_that_goes_late(phase: Phase) -> None:
    """There is nothing left to end because of it."""
    before = until(phase)

    assert answer(before, READER_GONE) == (before, ())


def test_a_reader_that_goes() -> None:
    """It ends a running job in order."""
    state, done = answer(until(RUNNING), READER_GONE)

    assert done == (PrintNotice(OUTPUT_CLOSED), *hand_on(TERM, 0, 1))
    assert external_cause_of(state) == OutputGone()


@pytest.mark.parametrize(
    ("phase", "actions", "then"),
    [
        (RUNNING, (*collect(0, 1), *SWEEP), CLEANING_UP),
        (STOPPING, (*collect(0), *SWEEP), CLEANING_UP),
        (KILLING, (*collect(0), *SWEEP), CLEANING_UP),
        (CLEANING_UP, SWEEP, CLEANING_UP),
        (COLLECTING, (), COLLECTING),
        (OVER, (), OVER),
    ],
)
def test_the_fork_server_is_lost(phase: Phase, actions: tuple[Action, ...], then: Phase) -> None:
    """Its workers died with it; what they left is swept by the agent, once."""
    state, done = answer(until(phase), FORK_SERVER_LOST)

    assert (done, state.phase) == (actions, then)
    assert all(ended.stopped_by_us for rank, ended in state.ended.items() if rank != 1)


@pytest.mark.parametrize(
    ("phase", "actions", "then"),
    [
        (RUNNING, ask(0, 1), STOPPING),
        (STOPPING, (), STOPPING),
        (KILLING, (), KILLING),
        (CLEANING_UP, (), CLEANING_UP),
        (COLLECTING, (), COLLECTING),
        (OVER, (), OVER),
    ],
)
def test_the_relay_is_lost(phase: Phase, actions: tuple[Action, ...], then: Phase) -> None:
    """A running job ends in order, as its output is lost."""
    state, done = answer(until(phase), RELAY_LOST)

    assert (done, state.phase) == (actions, then)


@pytest.mark.parametrize(
    ("event", "loss"), [(FORK_SERVER_LOST, HELPER_LOST), (RELAY_LOST, RELAY_FAILED)]
)
@pytest.mark.parametrize("phase", [STOPPING, KILLING, CLEANING_UP, COLLECTING])
def test_no_restart_without_helpers(phase: Phase, event: Event, loss: ExternalCause) -> None:
    """The next attempt would wait for ever, for workers without a fork server or a relay."""
    state, _ = answer(until(phase, restarts=1), event)
    _, done = let_time_pass(state)

    assert external_cause_of(state) == loss
    assert done[-1] == FINISH


@pytest.mark.parametrize("event", [FORK_SERVER_LOST, RELAY_LOST])
@pytest.mark.parametrize("phase", [STOPPING, KILLING, CLEANING_UP, COLLECTING])
def test_a_helper_lost_after_the_last_failure_is_not_its_cause(phase: Phase, event: Event) -> None:
    """The failing worker stays the reason."""
    state, _ = answer(until(phase), event)

    assert external_cause_of(state) is None


@pytest.mark.parametrize("event", [FORK_SERVER_LOST, RELAY_LOST])
def test_a_helper_lost_after_a_signal_is_not_the_cause(event: Event) -> None:
    """The signal came first."""
    state, _ = answer(workers(1), started(0), got(TERM), event)

    assert external_cause_of(state) == Interrupted(TERM)


@pytest.mark.parametrize(
    "event", [FORK_SERVER_LOST, RELAY_LOST, READER_GONE, TIME_IS_UP, swept(), ordered("no")]
)
def test_a_node_that_is_done_waits_for_the_others(event: Event) -> None:
    """Only their verdict, a signal and the loss of node 0 end that."""
    waiting, _ = answer(workers(1, shared=True), exited(0), swept(), printed(0))
    state, done = answer(waiting, event)

    assert (state.phase, done) == (Phase.WAITING, ())


def test_a_restart_goes_on_where_nothing_else_happens() -> None:
    """What the tests above show to be stopped does take place otherwise."""
    _, done = let_time_pass(until(STOPPING, restarts=1))

    assert done[-1] == RESTART


@pytest.mark.parametrize(
    "event",
    [
        started(0),
        not_started(0),
        exited(0),
        killed(0, TERM),
        swept("pid 1"),
        printed(0, "late"),
        READER_GONE,
        FORK_SERVER_LOST,
        RELAY_LOST,
        TIME_IS_UP,
        got(signal.SIGUSR1),
        got(signal.SIGTSTP),
    ],
)
def test_nothing_happens_once_it_is_over(event: Event) -> None:
    """What comes late finds everything done."""
    over = until(OVER, restarts=1)

    assert answer(over, event) == (over, ())


def let_time_pass(state: Attempt) -> tuple[Attempt, tuple[Action, ...]]:
    """Return what comes of an attempt in which nothing happens any more."""
    return answer(state, *[TIME_IS_UP] * len(Phase))
