"""Workers that have failed and do not exit: when they are looked at, named and killed."""

import signal

from msgspec.structs import replace

from tests.agent.door import (
    Attempt,
    CollectStacks,
    DeadlinePassed,
    LocalRank,
    PrintNotice,
    SetDeadline,
    SignalWorkers,
    StackGroup,
    StacksCollected,
    WorkerFailing,
    WorkerKilled,
)
from tests.agent.histories import (
    GRACE,
    answer,
    ask,
    collect,
    exited,
    report_failure,
    started,
    workers,
)

STACK = 'Current thread (most recent call first):\n  File "/train.py", line 4 in upload'
HUNG = StacksCollected(0, (StackGroup((1,), STACK),), shown=False, at=15.1)

KILL = SignalWorkers(frozenset({LocalRank(1)}), signal.SIGKILL, group=True)


def failing(at: float = 10.0, since: float = 0.0) -> WorkerFailing:
    """The exception of local rank 1 has left its script."""
    return WorkerFailing(LocalRank(1), at, since)


def two_run(*, shared: bool = False) -> Attempt:
    """Return an attempt of two workers that run."""
    return answer(workers(2, shared=shared), started(0), started(1))[0]


def stack_of_killed(state: Attempt, local_rank: LocalRank) -> str:
    late = state.late_exits.get(local_rank)
    return "" if late is None else late.hung


def notices(*actions: object) -> list[str]:
    return [action.text for action in actions if isinstance(action, PrintNotice)]


def test_it_is_named_then_killed_and_the_cause() -> None:
    """After 5 s with the place where it hangs; at the end of the grace period for all ranks."""
    state, actions = answer(two_run(shared=True), failing(at=11.0, since=1.0))
    assert actions == (SetDeadline(4.0),)

    state, actions = answer(state, DeadlinePassed(15.0))
    assert actions == (CollectStacks(0), SetDeadline(GRACE - 5))

    state, actions = answer(state, HUNG)
    assert notices(*actions) == [
        (
            "rank 1 failed 5 s ago and has not exited, in upload at train.py:4:"
            " it is killed 25 s after its failure (--shutdown-timeout gives it longer)"
        )
    ]

    state, actions = answer(state, DeadlinePassed(35.0))
    assert KILL in actions
    assert notices(*actions) == [
        "rank 1 did not exit within 25 s (--shutdown-timeout) of its failure: killing it"
    ]

    state, actions = answer(state, WorkerKilled(LocalRank(1), 9, 35.1, 25.1, code=1))
    assert actions == (report_failure(1), *collect(1), *ask(0))
    assert stack_of_killed(state, LocalRank(1)) == STACK
    assert state.ended[LocalRank(1)].failed_at == 10.0
    assert not state.ended[LocalRank(1)].stopped_by_us


def test_one_that_exits_in_time_is_not_named() -> None:
    """The exit ends the attempt as always, and what was planned comes to nothing."""
    state, _ = answer(two_run(shared=True), failing())

    state, actions = answer(state, exited(1, 1), HUNG)

    assert actions == (report_failure(1), *collect(1), *ask(0))
    assert stack_of_killed(state, LocalRank(1)) == ""


def test_a_stack_that_does_not_come_is_not_awaited_for_long() -> None:
    """The relay may hang."""
    state, _ = answer(two_run(shared=True), failing())
    state = replace(state, rules=replace(state.rules, grace=2.0))

    state, first = answer(state, DeadlinePassed(12.0))
    state, second = answer(state, DeadlinePassed(16.0))

    assert first == (CollectStacks(0), SetDeadline(4.0))
    assert KILL in second
    assert stack_of_killed(state, LocalRank(1)) == ""


def test_two_that_fail_are_looked_at_at_once() -> None:
    """One round of stacks; a rank whose stack is missing has none."""
    state, _ = answer(two_run(shared=True), failing(), WorkerFailing(LocalRank(0), 10.0, 0.0))

    state, actions = answer(state, DeadlinePassed(15.0))
    assert actions == (CollectStacks(0), SetDeadline(GRACE - 5))

    no_handler = StackGroup((0,), "it has no handler", found=False)
    state, actions = answer(state, StacksCollected(0, (no_handler,), shown=False, at=15.5))
    assert [text.partition(":")[0] for text in notices(*actions)] == [
        "rank 0 failed 6 s ago and has not exited"
    ]


def test_the_only_worker_of_a_job_is_named_and_left_alone() -> None:
    """No other rank waits for it."""
    state, _ = answer(workers(1), started(0), WorkerFailing(LocalRank(0), 10.0, 0.0))

    state, actions = answer(state, DeadlinePassed(15.0))
    assert actions == (CollectStacks(0),)

    stacks = StacksCollected(0, (StackGroup((0,), STACK),), shown=False, at=15.1)
    _, actions = answer(state, stacks)
    assert actions == (
        PrintNotice(
            "rank 0 failed 5 s ago and has not exited, in upload at train.py:4:"
            " it is left alone, as no other rank waits for it"
        ),
    )


def test_one_that_is_being_stopped_has_its_grace_period_already() -> None:
    """It is spared the signal, and killed with the others."""
    state, _ = answer(two_run(shared=True), exited(0, 3))

    _, actions = answer(state, failing())

    assert actions == ()


def test_a_traceback_has_the_time_to_be_printed() -> None:
    """Also without a grace period."""
    state = two_run(shared=True)
    state = replace(state, rules=replace(state.rules, grace=0.0))

    _, actions = answer(state, failing())

    assert actions == (SetDeadline(1.0),)


def test_each_has_its_own_time() -> None:
    """The stack of one that has failed later is not asked for yet, nor shown."""
    state, _ = answer(two_run(shared=True), failing(), WorkerFailing(LocalRank(0), 13.0, 0.0))

    state, first = answer(state, DeadlinePassed(15.0))
    both = StacksCollected(0, (StackGroup((0, 1), STACK),), shown=False, at=15.1)
    state, second = answer(state, both)

    assert first == (CollectStacks(0), SetDeadline(3.0))
    assert [text.partition(" failed")[0] for text in notices(*second)] == ["rank 1"]


def test_one_that_is_debugged_is_named_and_left_alone() -> None:
    """Others may wait for it: its user decides for how long."""
    state = two_run(shared=True)
    state = replace(state, rules=replace(state.rules, ends_late_exits=False))

    state, _ = answer(state, failing(), DeadlinePassed(15.0))
    state, actions = answer(state, HUNG)

    assert notices(*actions) == [
        (
            "rank 1 failed 5 s ago and has not exited, in upload at train.py:4:"
            " it is left alone, as it is debugged"
        )
    ]
    assert answer(state, DeadlinePassed(1000.0))[1] == ()
