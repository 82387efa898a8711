"""A suspension as the coordinator decides it: who asks, which step, and how it ends."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.coordination.door import (
    NEVER,
    OWN,
    SECONDS_FOR_FIRST_CALLS,
    SECONDS_TO_NAME,
    CancelSuspension,
    Held,
    HoldRanks,
    MessageReceived,
    NodeLost,
    Notice,
    NotSuspended,
    NotWanted,
    Over,
    RankAsks,
    RankLeft,
    RequestSuspension,
    SaveAt,
    SaveProgress,
    Saves,
    Saving,
    Stop,
    Suspended,
    SuspendRules,
    SuspensionPossible,
    TimePassed,
    agreement,
    awaited,
    due,
)
from tests.rendezvous.nodes import fate
from tests.rendezvous.replay import Replay, running

GRACE = 30.0
BY = "USR1 on n1"


def sends(job: Replay, number: int, message: Any) -> None:
    """A member sends a message."""
    job.happens(MessageReceived(number, message, job.now))


def wanted(job: Replay, number: int = 1) -> None:
    """A member passes a request on."""
    sends(job, number, RequestSuspension("USR1"))


def held(job: Replay, *marks: int) -> None:
    """All members report their highest marks."""
    for number, mark in enumerate(marks):
        sends(job, number, Held(job.state.attempt.number, mark))


def saves(
    job: Replay,
    number: int,
    mark: int = 0,
    unsaved: tuple[int, ...] = (),
    silent: tuple[int, ...] = (),
) -> None:
    """A member reports how far its ranks are."""
    progress = SaveProgress(mark, unsaved, silent)
    sends(job, number, Saves(job.state.attempt.number, progress))


def of_kind(job: Replay, kind: type[Any]) -> list[tuple[int, Any]]:
    """Return who was sent messages of this kind, in order."""
    return [(number, message) for number, message in job.sent if isinstance(message, kind)]


def stops(job: Replay) -> set[Any]:
    """Return why members were ordered to stop."""
    return {message.external_cause for _, message in of_kind(job, Stop)}


def test_the_step_after_the_highest_is_agreed_on() -> None:
    """All hold first; the answer follows the last report, and node 0 prints it."""
    job = running(3)
    wanted(job)

    held(job, 7, 9)
    before = of_kind(job, SaveAt)
    sends(job, 2, Held(0, 8))

    assert of_kind(job, HoldRanks) == [(number, HoldRanks(0)) for number in range(3)]
    assert before == []
    assert of_kind(job, SaveAt) == [(number, SaveAt(0, 10)) for number in range(3)]
    text = f"{BY}: all ranks save at step 9 and end (--suspend-grace 30 s)"
    assert of_kind(job, Notice)[-1] == (OWN, Notice(text))


def test_a_job_is_suspended() -> None:
    """Once all ranks of all nodes have saved; the verdict is that of all nodes."""
    job = running(2)
    job.state.terms = replace(job.state.terms, suspending=SuspendRules(GRACE, exit_code=99))
    job.now = 100.0
    wanted(job)
    held(job, 4, 5)
    saves(job, 0, unsaved=(0,))
    saves(job, 1, 6)
    job.now = 102.5
    saves(job, 0, 6)

    end = Suspended(BY, 5, 2.5, 99)
    assert stops(job) == {end}
    job.is_done(0, [(fate(0), 0.0)])
    # It had saved: what its exit handlers do is no failure of the job.
    job.is_done(1, [(fate(1, 1), 0.0)])
    assert set(job.verdicts.values()) == {end}


def test_a_request_waits_for_the_first_calls() -> None:
    """Without a call yet, all save at their first one, and the grace begins with that."""
    job = running(2)
    wanted(job)
    held(job, 0, 0)
    saves(job, 0, silent=(0,))
    saves(job, 1, silent=(1,))
    job.waits(SECONDS_TO_NAME)
    first_due = due(job.state)
    job.now = 1000.0
    saves(job, 0, unsaved=(0,))

    assert first_due == NEVER
    assert of_kind(job, SaveAt)[0] == (0, SaveAt(0, 1))
    assert due(job.state) == 1000.0 + GRACE
    text = f"{BY}: all ranks save at their first call of suspend.requested() and end"
    assert of_kind(job, Notice)[-2][1].text.startswith(text)
    assert "waits for ranks 0-1 to call" in of_kind(job, Notice)[-1][1].text


def test_the_grace_runs_out() -> None:
    """The job ends, and the ranks that have not saved are known."""
    job = running(2)
    wanted(job)
    held(job, 4, 5)
    saves(job, 0, 6)
    saves(job, 1, unsaved=(1,))

    job.waits(GRACE - 0.1)
    before = stops(job)
    job.waits(0.2)

    assert before == set()
    assert stops(job) == {NotSuspended(BY, 5, GRACE, (1,))}


def test_the_grace_runs_out_while_ranks_are_held() -> None:
    """An agent that does not answer must not hold the others for ever."""
    job = running(2)
    wanted(job)
    held(job, 4)

    job.waits(GRACE + 0.1)

    assert stops(job) == {NotSuspended(BY, 4, GRACE, ())}


def test_silent_ranks_are_not_waited_for_long() -> None:
    """They may never call; the others have saved."""
    job = running(2)
    wanted(job)
    held(job, 4, 0)
    saves(job, 0, 5)
    saves(job, 1, silent=(1,))

    job.waits(SECONDS_FOR_FIRST_CALLS - 0.1)
    before = stops(job)
    job.waits(0.2)

    assert before == set()
    assert stops(job) == {Suspended(BY, 4, SECONDS_FOR_FIRST_CALLS, 75, (1,))}


def test_a_rank_that_ends_cancels_the_suspension() -> None:
    """The others go on, and a later request is refused in the same way."""
    job = running(2)
    wanted(job)
    held(job, 4, 5)
    sends(job, 0, RankLeft(0, 0))
    saves(job, 1, 6)
    wanted(job)

    cancelled = [(number, CancelSuspension(0)) for number in (0, 1)]
    assert of_kind(job, CancelSuspension) == 2 * cancelled
    assert stops(job) == set()
    notices = [notice.text for _, notice in of_kind(job, Notice)][-2:]
    assert notices == [
        f"{BY}: not suspended, since rank 0 has exited already",
        f"{BY}: not suspended, since workers have exited already",
    ]


def test_a_request_comes_when_a_node_has_ended() -> None:
    """Its workers have exited with 0: so will the others."""
    job = running(2)
    job.is_done(0, [(fate(0), 0.0)])

    wanted(job)

    assert of_kind(job, HoldRanks) == []
    assert {number for number, _ in of_kind(job, CancelSuspension)} == {0, 1}


def test_a_rank_that_ends_without_a_suspension_is_nothing() -> None:
    """A message that is late changes nothing."""
    job = running(2)
    sends(job, 0, RankLeft(0, 0))
    held(job, 1)
    saves(job, 0, 1)

    assert job.state.attempt.agreement == NotWanted()


def test_a_second_request_is_the_same_one() -> None:
    """From another node, while the first is agreed on."""
    job = running(2)
    wanted(job)
    wanted(job, OWN)
    held(job, 4, 5)
    wanted(job, OWN)
    held(job, 6, 7)

    assert of_kind(job, HoldRanks) == [(0, HoldRanks(0)), (1, HoldRanks(0))]
    assert of_kind(job, SaveAt) == [(0, SaveAt(0, 6)), (1, SaveAt(0, 6))]
    assert job.state.request is not None
    assert job.state.request.by == BY


def typed(job: Replay, number: int = 1) -> None:
    """A member passes on what its user types."""
    sends(job, number, RequestSuspension("clusterrun suspend"))


def test_ranks_that_do_not_save_are_named() -> None:
    """Once, by node 0, and in each look."""
    job = running(3)
    wanted(job)
    held(job, 4, 5, 0)
    saves(job, 0, 6)
    saves(job, 1, unsaved=(1,))
    saves(job, 2, silent=(2,))

    job.waits(SECONDS_TO_NAME - 0.1)
    before = [notice.text for _, notice in of_kind(job, Notice)]
    job.waits(0.2)
    job.waits(5.0)

    waits = (
        f"{BY}: waits for rank 1 to save and for rank 2 to call suspend.requested() for the first"
        " time; clusterrun suspend, typed again, ends the job without waiting"
    )
    assert not [text for text in before if "waits for" in text]
    assert [notice for notice in of_kind(job, Notice) if "waits for" in notice[1].text] == [
        (OWN, Notice(waits))
    ]
    assert awaited(job.state) == waits
    assert stops(job) == set()


@pytest.mark.parametrize("first", [wanted, typed])
def test_a_person_does_not_wait_for_them(first: Callable[[Replay], None]) -> None:
    """Typed twice, after they were named: the job ends at once, and they have not saved."""
    job = running(2)
    first(job)
    held(job, 4, 5)
    saves(job, 0, 6)
    saves(job, 1, unsaved=(1,))
    typed(job)
    job.waits(SECONDS_TO_NAME + 0.1)
    wanted(job)
    before = stops(job)

    typed(job)

    assert before == set()
    by = BY if first is wanted else "clusterrun suspend on n1"
    assert stops(job) == {NotSuspended(by, 5, GRACE, (1,), (), is_given_up=True)}


def test_typed_twice_before_ranks_are_named() -> None:
    """It is the same request: nobody has read who is late."""
    job = running(2)
    typed(job)
    held(job, 4, 5)
    saves(job, 0, 6)
    typed(job)

    assert stops(job) == set()


def test_typed_again_while_no_rank_has_called() -> None:
    """There is nothing to go on with: it waits for their first calls."""
    job = running(2)
    typed(job)
    held(job, 0, 0)
    saves(job, 0, silent=(0,))
    saves(job, 1, silent=(1,))
    job.waits(SECONDS_TO_NAME + 0.1)
    typed(job)

    assert stops(job) == set()
    assert awaited(job.state) == (
        "clusterrun suspend on n1: waits for ranks 0-1 to call suspend.requested() for the first"
        " time"
    )


def test_a_failure_ends_the_agreement() -> None:
    """It is the cause, whatever arrives later; the grace ends nothing more."""
    job = running(2)
    wanted(job)
    held(job, 4, 5)
    job.fails(1, fate(1, 3))
    saves(job, 0, 6)
    saves(job, 1, 6)
    job.is_done(0, [(fate(0), 0.0)])
    job.is_done(1, [(fate(1, 3), 0.0)])

    assert stops(job) == {None}
    assert not any(isinstance(each, Suspended) for each in job.verdicts.values())


def test_a_lost_node_ends_the_agreement() -> None:
    """As always: it may not have saved."""
    job = running(2)
    wanted(job)
    held(job, 4, 5)
    job.goes(1)
    saves(job, 0, 6)
    job.is_done(0, [(fate(0), 0.0)])

    assert stops(job) == {None}
    assert set(job.verdicts.values()) == {NodeLost(1, "n1")}


@pytest.mark.parametrize("is_early", [True, False])
def test_a_request_holds_for_the_next_attempt(*, is_early: bool) -> None:
    """Whether it came before the failure, or when all workers were being stopped."""
    job = running(2, restarts=1)
    if is_early:
        wanted(job)
        held(job, 4, 5)
    job.fails(1, fate(1, 3))
    if not is_early:
        wanted(job)
    job.is_done(0, [(fate(0, 15), 0.0)])
    job.is_done(1, [(fate(1, 3), 0.0)])

    held(job, 0, 0)

    assert of_kind(job, HoldRanks)[-2:] == [(0, HoldRanks(1)), (1, HoldRanks(1))]
    assert of_kind(job, SaveAt)[-2:] == [(0, SaveAt(1, 1)), (1, SaveAt(1, 1))]


def test_all_nodes_know_that_ranks_ask() -> None:
    """Once for the whole job."""
    job = running(2)
    for number in (1, 0, 1):
        sends(job, number, RankAsks(0))

    assert of_kind(job, SuspensionPossible) == [(number, SuspensionPossible()) for number in (0, 1)]


def test_on_one_node_the_host_is_not_named() -> None:
    """There is only one."""
    job = running(1)
    job.happens(TimePassed(job.now))
    wanted(job, OWN)

    assert job.state.request is not None
    assert job.state.request.by == "USR1"


@pytest.mark.parametrize("known", [NotWanted(), Over()])
def test_time_ends_only_an_agreement(known: agreement.Agreement) -> None:
    """There is nothing to wait for."""
    assert agreement.due(known) == NEVER
    assert agreement.time_passed(known, NEVER) == (known, ())
    assert agreement.rank_left(known) == (known, ())


def test_it_is_not_time_yet() -> None:
    """Only the time of ``due`` counts."""
    saving = Saving(1, GRACE, frozenset(), grace_ends=5.0)

    assert agreement.time_passed(saving, 4.0) == (saving, ())
