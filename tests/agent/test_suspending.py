"""A suspension as an agent decides it: requests, and the ranks that are held and save."""

import signal

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    Action,
    Attempt,
    CancelSuspension,
    EndedExternally,
    GlobalRank,
    Held,
    HoldRanks,
    Interrupted,
    LetRanksLeave,
    LocalRank,
    NotSuspended,
    Phase,
    PrintNotice,
    RankAsks,
    RankLeft,
    ReleaseRanks,
    RequestSuspension,
    Rules,
    SaveAt,
    SaveProgress,
    Saves,
    SendToCoordinator,
    SetDeadline,
    SignalWorkers,
    Suspended,
    SuspensionPossible,
    events,
    messages,
)
from tests.agent.histories import (
    FINISH,
    GRACE,
    NODE_0_LOST,
    SWEEP,
    answer,
    collect,
    exited,
    got,
    hand_on,
    kill,
    ordered,
    printed,
    sent,
    started,
    swept,
    verdict,
    workers,
)
from tests.agent.notices import (
    killing_instead,
    stopping,
    stopping_here,
)

TERM, USR1, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
POSSIBLE = sent(SuspensionPossible())
HOLD = sent(messages.HoldRanks(0))
SUSPENDED = Suspended("USR1", 4, 1.0, 75)
LATE = NotSuspended("USR1", 4, 30.0, (2,))


def asked(local_rank: int) -> events.RankAsked:
    """A rank calls for the first time."""
    return events.RankAsked(LocalRank(local_rank), at=10.0)


def saved(local_rank: int, mark: int = 5) -> events.RankSaved:
    """A rank has saved."""
    return events.RankSaved(LocalRank(local_rank), mark, at=10.0)


def request(by: str) -> SendToCoordinator:
    return SendToCoordinator(RequestSuspension(by))


def progress(mark: int, unsaved: tuple[int, ...], silent: tuple[int, ...]) -> SendToCoordinator:
    """The ranks of a second node, whose first rank is 2."""
    return SendToCoordinator(Saves(0, SaveProgress(mark, unsaved, silent)))


def running(*happened: events.Event) -> Attempt:
    """Return two workers that run, as ranks 2 and 3, after what happened."""
    state = replace(workers(2, shared=True), first_rank=GlobalRank(2))
    state = replace(state, rules=Rules(GRACE, foreground=False, suspend_signal=USR1))
    return answer(state, started(0), started(1), *happened)[0]


SAVING = (asked(0), asked(1), HOLD, sent(SaveAt(0, 5)))


def decided(state: Attempt, *happened: events.Event) -> tuple[Action, ...]:
    return answer(state, *happened)[1]


def test_another_part_of_the_agent_asks() -> None:
    """By an event; the coordinator keeps the request."""
    wanted = events.SuspensionWanted("--suspend-before 300", at=10.0)

    assert decided(running(), wanted) == (request("--suspend-before 300"),)
    assert decided(running(NODE_0_LOST), wanted) == ()


def test_sigterm_asks_once_a_rank_of_the_job_has_called() -> None:
    """Before, it stops the job."""
    assert decided(running(POSSIBLE), got(TERM)) == (request("SIGTERM"),)
    assert SendToCoordinator(EndedExternally(0, Interrupted(TERM))) in decided(running(), got(TERM))


def test_the_suspend_signal_asks_at_any_time() -> None:
    """It is not forwarded; sent by two ways, it came once."""
    two_ways = (got(USR1, at=10.0, to_fork_server=True), got(USR1, at=10.2))

    assert decided(running(), *two_ways) == (request("SIGUSR1"),)


def test_the_first_call_is_reported() -> None:
    """Once for each attempt, whatever ranks follow."""
    assert decided(running(), asked(1), asked(0)) == (SendToCoordinator(RankAsks(0)),)


def test_ranks_are_held_and_released() -> None:
    """Their progress is reported at once, and with each rank that saves or calls."""
    state = running(asked(0))

    assert decided(state, HOLD) == (HoldRanks(),)
    assert decided(state, HOLD, events.RanksHeld(4, at=10.0), sent(SaveAt(0, 5))) == (
        *(HoldRanks(), SendToCoordinator(Held(0, 4))),
        *(ReleaseRanks(5), progress(0, (2,), (3,))),
    )
    state = running(asked(0), HOLD, sent(SaveAt(0, 5)))
    assert decided(state, asked(1), saved(0), saved(1)) == (
        progress(0, (2, 3), ()),
        progress(5, (3,), ()),
        progress(5, (), ()),
    )


def test_orders_of_another_attempt_are_late() -> None:
    """They name attempt 1, and this is attempt 0."""
    late = (sent(messages.HoldRanks(1)), sent(SaveAt(1, 5)), sent(CancelSuspension(1)))

    assert decided(running(), *late) == ()


def test_ranks_that_are_being_stopped_are_not_held() -> None:
    """The order came while another node ended the attempt."""
    assert decided(running(ordered("rank 0 on n0 failed")), HOLD, sent(SaveAt(0, 5))) == ()


def test_a_rank_that_has_ended_is_reported() -> None:
    """Whether it ends before the ranks are held, or later; without a suspension it is not."""
    left = SendToCoordinator(RankLeft(0, 3))

    assert decided(running(), exited(1)) == collect(1)
    assert decided(running(exited(1)), HOLD) == (left,)
    assert decided(running(*SAVING), exited(1)) == (left, *collect(1))


def test_all_ranks_leave_once_all_have_saved() -> None:
    """They exit by themselves; the grace period of a stop runs all the same."""
    state = running(*SAVING, saved(0), saved(1))
    ends = ordered("suspended", external_cause=SUSPENDED)

    assert decided(state, ends) == (
        LetRanksLeave(),
        SignalWorkers(frozenset(), TERM, group=False, except_failing=True),
        SetDeadline(GRACE),
    )
    end = answer(state, ends, exited(0), exited(1), swept(), printed(0), printed(1))[0]
    assert all(ended.stopped_by_us for ended in end.ended.values())
    assert answer(end, verdict(SUSPENDED))[1] == (FINISH,)


def test_a_silent_rank_is_stopped() -> None:
    """It has never called; the other one has saved."""
    state = running(asked(0), HOLD, sent(SaveAt(0, 5)), saved(0))

    asks = decided(state, ordered("suspended", external_cause=SUSPENDED))
    assert SignalWorkers(frozenset({LocalRank(1)}), TERM, group=False, except_failing=True) in asks


def test_it_is_too_late() -> None:
    """Those that have not saved are stopped; those that wait may leave."""
    actions = decided(running(*SAVING, saved(0)), ordered("too late", external_cause=LATE))

    assert actions == (
        LetRanksLeave(),
        PrintNotice(stopping_here("too late", 1)),
        SignalWorkers(frozenset({LocalRank(1)}), TERM, group=False, except_failing=True),
        SetDeadline(GRACE),
    )


def test_a_failure_lets_the_others_go() -> None:
    """A rank that is held would not see SIGTERM's handler return."""
    assert decided(running(HOLD), exited(0, 3))[0] == LetRanksLeave()
    assert LetRanksLeave() not in decided(running(), exited(0, 3))


def test_what_ranks_do_then_is_not_reported() -> None:
    """The attempt ends for another reason."""
    state = running(*SAVING, exited(0, 3))

    assert state.phase is Phase.STOPPING
    late = (saved(1), asked(1), events.RanksHeld(1, at=10.0), HOLD, sent(SaveAt(0, 5)))
    assert decided(state, *late) == (SendToCoordinator(RankLeft(0, 2)),)


def test_a_cancelled_suspension_lets_ranks_go_on() -> None:
    """A later request may come."""
    state = running(POSSIBLE, *SAVING)
    cancel = sent(CancelSuspension(0))

    assert decided(state, cancel) == (ReleaseRanks(0),)
    assert decided(running(), cancel) == ()
    assert decided(state, cancel, got(TERM)) == (ReleaseRanks(0), request("SIGTERM"))


def test_a_cancelled_sigterm_ends_the_job() -> None:
    """As it would have without suspend.requested."""
    state = running(POSSIBLE, got(TERM), *SAVING)

    assert decided(state, sent(CancelSuspension(0))) == (
        LetRanksLeave(),
        ReleaseRanks(0),
        SendToCoordinator(EndedExternally(0, Interrupted(TERM))),
        PrintNotice(stopping(TERM, 2, GRACE)),
        *hand_on(TERM, 0, 1),
    )


@pytest.mark.parametrize("happened", [(), SAVING])
def test_a_second_sigterm_ends_the_job_at_once(happened: tuple[events.Event, ...]) -> None:
    """More than a second later; sooner, it is the same one, sent by two ways."""
    state = running(POSSIBLE, got(TERM, at=10.0), *happened)
    leave = (LetRanksLeave(),) if happened else ()

    assert decided(state, got(TERM, at=10.5)) == ()
    assert decided(state, got(TERM, at=12.0)) == (
        *leave,
        SendToCoordinator(EndedExternally(0, Interrupted(TERM))),
        PrintNotice(killing_instead(TERM, 2)),
        *kill(0, 1),
    )


def test_a_second_sigterm_does_not_wait_for_exit_handlers() -> None:
    """All have saved, and one hangs on its way out."""
    ends = ordered("suspended", external_cause=SUSPENDED)
    state = running(POSSIBLE, got(TERM, at=10.0), *SAVING, saved(0), saved(1), ends)

    assert decided(state, got(TERM, at=12.0))[-2:] == kill(0, 1)


def test_ctrl_c_ends_a_job_that_is_being_suspended() -> None:
    """In order, as always."""
    state, actions = answer(running(POSSIBLE, *SAVING), got(INT))

    assert state.external_cause == Interrupted(INT)
    assert actions[0] == LetRanksLeave()


def test_the_last_rank_ends_while_others_are_asked() -> None:
    """The coordinator learns of it before it learns that all have ended."""
    state = running(*SAVING, exited(0))

    assert decided(state, exited(1)) == (
        LetRanksLeave(),
        SendToCoordinator(RankLeft(0, 3)),
        *collect(1),
        *SWEEP,
    )


def test_the_next_attempt_knows_that_ranks_ask() -> None:
    """And nothing else: its pages are fresh."""
    later = running(POSSIBLE, got(TERM), *SAVING, saved(0)).suspending.in_next_attempt()

    assert later.possible
    assert (later.asked, later.saved, later.is_on, later.mark) == (
        frozenset(),
        frozenset(),
        False,
        0,
    )
