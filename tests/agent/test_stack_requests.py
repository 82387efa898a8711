"""An agent's actions for stacks, on request or because no rank runs."""

import signal

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    EXITED,
    Action,
    AllStacks,
    CollectStacks,
    Event,
    ExpectNoStacks,
    Idle,
    LocalRank,
    PrintNotice,
    PrintStacks,
    SendStacks,
    SendToCoordinator,
    SignalNotHandled,
    StackGroup,
    Stacks,
    StacksCollected,
    WatchActivity,
    WorkersActive,
    WorkersIdle,
    describe,
)
from tests.agent.histories import (
    ASK_STACKS,
    NODE_0_LOST,
    answer,
    exited,
    got,
    sent,
    started,
    workers,
)
from tests.agent.notices import (
    STACKS_OF_ALL,
    stacks_follow,
)

IN_F = StackGroup((0, 1, 2, 5), "  File f\n  File g")
NONE = StackGroup((3,), "no handler", found=False)
SHOWN = "  ranks 0-2, 5:\n      File f\n      File g\n  rank 3: no handler"

STILL, MOVES = WorkersIdle(60.0, 10.0), WorkersActive(10.0)
COLLECTED = StacksCollected(7, (IN_F, NONE), shown=False, at=10.0)
LACK = ExpectNoStacks((LocalRank(1),))
GATHERED = sent(AllStacks((IN_F, NONE), ("node 3 (gpu-07\x1b[2J)",)))


def answer_with(*groups: StackGroup) -> SendToCoordinator:
    """The answer to the coordinator's request."""
    return SendToCoordinator(Stacks(0, 7, groups))


@pytest.mark.parametrize(
    ("event", "actions"),
    [
        (got(signal.SIGQUIT), (PrintNotice(stacks_follow(2)), ASK_STACKS)),
        (SignalNotHandled(signal.SIGQUIT, (LocalRank(1),), 10.0), (LACK,)),
        (COLLECTED, (answer_with(IN_F, NONE),)),
        (StacksCollected(7, (IN_F,), shown=True, at=10.0), (answer_with(),)),
        (sent(AllStacks((), ())), ()),
    ],
)
def test_on_one_node(event: Event, actions: tuple[Action, ...]) -> None:
    """What the worker prints on the screen itself is not printed again."""
    assert answer(workers(2), started(0), started(1), event)[1] == actions


@pytest.mark.parametrize(
    ("event", "actions"),
    [
        (got(signal.SIGQUIT), (PrintNotice(STACKS_OF_ALL), ASK_STACKS)),
        (STILL, (SendToCoordinator(Idle(0, 60.0)),)),
        (MOVES, (SendToCoordinator(Idle(0, 0.0)),)),
        (sent(SendStacks(0, 7)), (CollectStacks(7),)),
        (COLLECTED, (answer_with(IN_F, NONE),)),
        (GATHERED, (PrintStacks(f"{SHOWN}\n  node 3 (gpu-07[2J): no answer"),)),
    ],
)
def test_on_one_of_several(event: Event, actions: tuple[Action, ...]) -> None:
    """The coordinator collects the answers, and node 0 prints all stacks."""
    assert answer(workers(2, shared=True), started(0), started(1), event)[1] == actions


def test_without_a_coordinator_no_stacks_are_collected() -> None:
    """There is no round to answer."""
    asked = answer(workers(1, shared=True), started(0), NODE_0_LOST)[0]

    assert answer(asked, got(signal.SIGQUIT))[1] == ()


def test_nothing_moves_while_workers_end() -> None:
    """They are stopped already, and have their grace period."""
    done = answer(workers(2), started(0), started(1), exited(0, 1))[0]

    assert answer(done, STILL)[1] == ()


def test_a_rank_that_has_exited_is_named() -> None:
    """The others may wait for it."""
    state = answer(workers(2), started(0), started(1), exited(1, 0))[0]

    named = StackGroup((1,), EXITED, found=False)
    assert answer(state, COLLECTED)[1] == (answer_with(IN_F, NONE, named),)
    failed = answer(workers(2), started(0), started(1), exited(1, 3))[0]
    assert answer(failed, COLLECTED)[1] == (answer_with(IN_F, NONE),)


def test_a_hang_is_looked_for_once_the_last_script_runs() -> None:
    """What imports before that is no hang; without ``--hang-timeout`` nothing is looked for."""
    state = workers(2)
    watched = replace(state, rules=replace(state.rules, finds_hangs=True))

    half, actions = answer(watched, started(1))
    assert actions == ()
    assert answer(half, started(0))[1] == (WatchActivity(),)
    assert answer(state, started(0), started(1))[1] == ()


def test_no_rank_runs() -> None:
    """There is something to say all the same."""
    assert describe(()) == "  no rank is running"
