"""What an agent does in a job that outlives its nodes: it kills at once if it is cut off, and begins late."""

import signal

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    Attempt,
    CoordinatorLost,
    CoordinatorSent,
    CoordinatorSought,
    Finish,
    GlobalRank,
    LocalRank,
    NextAttempt,
    NodeLost,
    Phase,
    PrintNotice,
    Restart,
    RestartProgress,
    Rules,
    SetDeadline,
    SignalWorkers,
    Stop,
    Verdict,
    WorkerExited,
    WorkerStarted,
)
from tests.decided import decide
from tests.plans import world

LOST = CoordinatorLost("n0", "has been silent for 15 s", 5.0)
SOUGHT = CoordinatorSought("n0", "is gone", 5.0)
GIVEN_UP = CoordinatorSent(Verdict(NodeLost(1, "n1"), "gone on"), 5.0)


def running(*, kills: bool = True) -> Attempt:
    """Return the state of an agent with two workers."""
    ranks = frozenset(map(LocalRank, range(2)))
    rules = Rules(25.0, foreground=False, kills_if_cut_off=kills)
    state = Attempt(rules, 0, 2, GlobalRank(2), False, ranks)
    for rank in ranks:
        state, _ = decide(state, WorkerStarted(rank, 100, "", 1.0))
    return state


@pytest.mark.parametrize("event", [LOST, GIVEN_UP, SOUGHT])
def test_workers_of_a_node_that_is_cut_off_are_killed(
    event: CoordinatorLost | CoordinatorSent | CoordinatorSought,
) -> None:
    """The grace period would let them save what the next attempt saves, too."""
    state, actions = decide(running(), event)

    notice, kill, deadline = actions
    assert isinstance(notice, PrintNotice)
    assert notice.text.endswith("killing 2 workers here, since the other nodes may go on")
    assert isinstance(kill, SignalWorkers)
    assert (kill.number, kill.group) == (signal.SIGKILL, True)
    assert isinstance(deadline, SetDeadline)
    assert state.phase is Phase.KILLING


def test_workers_that_are_being_stopped_are_killed_too() -> None:
    """The order to stop came before the news that the others have gone on."""
    state, _ = decide(running(), CoordinatorSent(Stop(0, "node 1 (n1) is gone"), 4.0))

    state, actions = decide(state, GIVEN_UP)

    assert state.phase is Phase.KILLING
    assert any(isinstance(each, SignalWorkers) for each in actions)


def test_no_worker_is_left_to_kill() -> None:
    """The sequence of the end goes on."""
    state = running()
    for rank in sorted(state.alive):
        state, _ = decide(state, WorkerExited(rank, 0, 3.0))

    after, actions = decide(state, LOST)

    assert after.phase is state.phase
    assert actions == ()


def test_a_job_that_ends_with_its_nodes_stops_in_order() -> None:
    """SIGTERM, and the grace period."""
    state, actions = decide(running(kills=False), LOST)

    assert state.phase is Phase.STOPPING
    assert [each.number for each in actions if isinstance(each, SignalWorkers)] == [signal.SIGTERM]


def test_progress_is_kept_for_the_report() -> None:
    """Counts, and who has whose place."""
    state = Attempt(
        Rules(25.0, foreground=False), 0, 2, GlobalRank(0), False, frozenset(), Phase.WAITING
    )
    progress = RestartProgress(restarts=1, losses=2)

    state, actions = decide(
        state, CoordinatorSent(NextAttempt(world(2, attempt=1), NodeLost(1, "n1"), progress), 5.0)
    )

    assert actions == (Restart(),)
    assert state.progress == progress


def test_the_answer_comes_from_a_successor() -> None:
    """A node that has reported waits for it, as for that of the lost coordinator."""
    state = replace(running(), phase=Phase.WAITING)

    assert decide(state, SOUGHT) == (state, ())


def test_no_successor_goes_on() -> None:
    """The report says so."""
    lost = CoordinatorLost("n1", "is gone", 5.0, 1, "no successor")

    state, actions = decide(replace(running(), phase=Phase.WAITING), lost)

    assert actions == (Finish(),)
    assert state.node_zero_lost == NodeLost(1, "n1")
    assert state.no_restart == "no successor"
