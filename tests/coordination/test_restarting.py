"""A restart on all nodes: when all have stopped, and only if no rule forbids it."""

import pytest

from tests.coordination.door import (
    NEVER,
    OWN,
    EndedExternally,
    FirstFailure,
    HelperFailed,
    Interrupted,
    JobPhase,
    Killed,
    MessageReceived,
    NextAttempt,
    NodeLost,
    Notice,
    PortReady,
    PreparePort,
    WorkerFailed,
    begin,
    due,
)
from tests.rendezvous.nodes import fate
from tests.rendezvous.replay import Replay, running

STOPPED = Killed(15)
SOON = "within 10 s of its start"
CAUSE = fate(1, 7, tail="ValueError: it", ran_for=100.0)


def fails(job: Replay, cause: object = CAUSE) -> None:
    """Let the worker of node 1 fail, and all nodes stop."""
    job.fails(1, cause)  # type: ignore[arg-type]
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.is_done(1, [(cause, 0.5)])  # type: ignore[list-item]


def again(job: Replay) -> dict[int, NextAttempt]:
    """Return the last order to restart that each connection received."""
    return {number: message for number, message in job.sent if isinstance(message, NextAttempt)}


def test_the_next_attempt_begins_when_all_have_stopped() -> None:
    """Each node receives its ranks, and the reason for the end of the last attempt."""
    job = running(3, restarts=1)
    job.fails(1, CAUSE)
    job.is_done(1, [(CAUSE, 1.0)])
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    before = again(job)
    job.is_done(2, [(fate(2, ending=STOPPED, stopped_by_us=True), 0.0)])

    orders = again(job)
    assert before == {}
    assert {number: message.world.node_rank for number, message in orders.items()} == {
        0: 0,
        1: 1,
        2: 2,
    }
    assert {message.world.attempt for message in orders.values()} == {1}
    assert {message.reason for message in orders.values()} == {WorkerFailed(CAUSE)}
    assert job.verdicts == {}
    assert job.state.phase is JobPhase.RUNNING


def test_the_port_is_prepared_before_the_orders_are_sent() -> None:
    """A chosen port differs in each attempt."""
    job = running(2, restarts=1)
    job.port = 31000
    fails(job)

    (at,) = (i for i, reply in enumerate(job.replies) if isinstance(reply, PreparePort))
    assert not any(
        isinstance(getattr(reply, "message", None), NextAttempt) for reply in job.replies[:at]
    )
    assert {message.world.master_port for message in again(job).values()} == {31000}


def test_restarts_are_counted_once_for_the_job() -> None:
    """For failures of any node."""
    job = running(2, restarts=2)
    for _ in range(3):
        fails(job)

    assert again(job)[0].world.attempt == 2
    assert job.verdicts == dict.fromkeys((0, 1), WorkerFailed(CAUSE))
    assert set(job.objections) == {""}


def test_a_second_failure_counts_in_its_own_attempt() -> None:
    """Nothing of the attempt before is kept."""
    job = running(2, restarts=1)
    fails(job)
    job.is_done(1, [(fate(1), 0.0)])
    job.is_done(0, [(fate(0), 0.0)])

    assert len(job.stops) == 2
    assert job.verdicts[0].__class__.__name__ == "Succeeded"


def test_a_message_of_the_attempt_before_is_ignored() -> None:
    """It was sent before the next one began; all have stopped for it already."""
    job = running(2, restarts=1)
    fails(job)
    state = job.state
    job.happens(MessageReceived(1, FirstFailure(0, CAUSE, 0.0), 1.0))
    job.happens(MessageReceived(1, EndedExternally(0, Interrupted(2)), 1.0))

    assert job.state == state


def test_a_message_of_a_later_attempt_is_a_protocol_error() -> None:
    """Its sender is disconnected."""
    job = running(2, restarts=1)

    job.happens(MessageReceived(1, FirstFailure(5, CAUSE, 0.0), 1.0))

    assert job.disconnected == [1]


def test_a_final_exit_code_ends_the_job() -> None:
    """--no-restart-exit-codes: the user knows that it would fail again."""
    job = running(2, restarts=1, final_codes=(3, 5, 6, 7))
    fails(job)

    assert job.verdicts == dict.fromkeys((0, 1), WorkerFailed(CAUSE))
    assert set(job.objections) == {"exit code 7 is one of --no-restart-exit-codes 3,5-7"}


def test_the_same_failure_twice_at_once_ends_the_job() -> None:
    """Although there may be more restarts."""
    early = fate(1, 7, tail="Traceback\nValueError: it\n", ran_for=2.0)
    job = running(2, restarts=5)
    fails(job, early)
    once = again(job)
    fails(job, early)

    assert len(once) == 2
    assert job.verdicts[0] == WorkerFailed(early)
    assert set(job.objections) == {
        f"rank 1 failed twice with the same last line {SOON} (--no-fail-fast restarts all the same)"
    }


def test_the_same_failure_twice_with_no_fail_fast() -> None:
    """Then the job restarts."""
    early = fate(1, 7, tail="ValueError: it\n", ran_for=2.0)
    job = running(2, restarts=5, ends_on_repeat=False)
    for _ in range(5):
        fails(job, early)

    assert job.verdicts == {}


def test_a_node_that_disconnects_after_its_report_prevents_a_restart() -> None:
    """Too few nodes are left for another attempt; the cause of this one stays the cause."""
    job = running(3, restarts=1)
    job.fails(1, CAUSE)
    job.is_done(2, [(fate(2, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.goes(2)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.is_done(1, [(CAUSE, 1.0)])

    assert again(job) == {}
    assert job.verdicts == dict.fromkeys((0, 1), WorkerFailed(CAUSE))
    assert set(job.objections) == {"node 2 (n2) is gone"}


def test_a_lost_node_is_no_reason_to_restart() -> None:
    """A world of fixed size can't do without it."""
    job = running(2, restarts=5)
    job.goes(1)
    job.is_done(0, [(fate(0, 1), 0.0)])

    assert job.verdicts == {0: NodeLost(1, "n1")}


def test_a_signal_while_all_stop_prevents_the_next_attempt() -> None:
    """A signal between two attempts is for the job."""
    job = running(2, restarts=5)
    job.fails(1, CAUSE)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.is_ended_externally(0, Interrupted(15))
    job.is_done(1, [(CAUSE, 1.0)])

    assert job.verdicts == dict.fromkeys((0, 1), Interrupted(15))


def test_a_signal_after_the_last_failure_is_not_its_cause() -> None:
    """No other attempt would have followed."""
    job = running(2, restarts=0)
    job.fails(1, CAUSE)
    job.is_ended_externally(0, Interrupted(15))
    job.is_done(0, [], Interrupted(15))
    job.is_done(1, [(CAUSE, 1.0)])

    assert job.verdicts == dict.fromkeys((0, 1), WorkerFailed(CAUSE))


def test_a_node_that_is_done_may_end_the_job() -> None:
    """A user interrupts it while it waits for the others."""
    job = running(3, restarts=1)
    job.is_done(2, [(fate(2), 0.0)])
    job.is_ended_externally(2, Interrupted(15))
    stopped = dict(job.stops)
    for number in (0, 1):
        job.is_done(number, [(fate(number, ending=STOPPED, stopped_by_us=True), 0.0)])

    assert stopped == dict.fromkeys((0, 1, 2), "n2 got SIGTERM")
    assert job.verdicts == dict.fromkeys((0, 1, 2), Interrupted(15))


def test_a_signal_that_ended_a_worker_first_is_the_signal_that_ended_the_job() -> None:
    """A scheduler signals all processes at once, and the agents' signals arrive last."""
    job = running(2, restarts=1)
    struck = fate(1, ending=Killed(15))
    job.fails(1, struck)
    job.is_done(1, [(struck, 0.0)], Interrupted(15))
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)], Interrupted(15))

    assert job.verdicts == dict.fromkeys((0, 1), Interrupted(15))


def test_a_node_that_cannot_restart_declines() -> None:
    """Its fork server is lost: it declines, and all stop."""
    job = running(2, restarts=1)
    fails(job)
    lost_helper = HelperFailed("fork server", "was killed by SIGKILL", 9)
    job.is_done(1, [], lost_helper)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])

    assert job.verdicts[0] == HelperFailed("fork server on n1", "was killed by SIGKILL", 9)


def test_a_prepared_port_after_the_end_begins_nothing() -> None:
    """Only an attempt that has ended is followed by another."""
    job = running(2, restarts=1)
    state = job.state

    job.happens(PortReady(31000, 0.0))

    assert job.state == state


def test_a_node_that_is_done_early_prints_the_others_in_each_attempt() -> None:
    """A minute after it is done."""
    job = running(2, restarts=1)
    fails(job)
    job.waits(100)
    job.is_done(1, [(fate(1), 0.0)])
    job.waits(60)

    received = [message for message in job.sent_to(1) if isinstance(message, Notice)]
    assert received == [Notice("all workers of this node have exited; still running: n0")]
    assert not [message for message in job.sent_to(OWN) if isinstance(message, Notice)]


def test_an_attempt_follows_one_that_failed() -> None:
    """Anything else is a mistake of ours."""
    with pytest.raises(AssertionError, match="follows one that has failed"):
        begin(running(2, restarts=1).state, 29500)


def quick() -> Replay:
    """Return a job whose third quick restart is due: a worker dies silently each time."""
    job = running(2, restarts=40)
    for number in range(3):
        fails(job, fate(1, 7, ran_for=number + 1.0))
    assert job.state.phase is JobPhase.RESTARTING
    return job


def test_quick_restarts_pause() -> None:
    """A worker that dies silently does not use up all restarts in a second."""
    job = quick()
    before = again(job)[0].world.attempt
    job.waits(1.0)

    assert (before, again(job)[0].world.attempt) == (2, 3)
    assert job.notices == [
        "restarting in 0.5 s, since workers have failed within 10 s of their start 3 times in a row"
    ]
    assert due(job.state) == NEVER


def test_a_longer_attempt_ends_the_pauses() -> None:
    """Only restarts in a row count."""
    job = quick()
    job.waits(1.0)
    fails(job, CAUSE)
    fails(job, fate(1, 7, ran_for=1.0))

    assert again(job)[0].world.attempt == 5


def test_a_node_is_lost_in_a_pause() -> None:
    """Without spares the job ends."""
    job = quick()
    job.goes(1)

    assert job.verdicts == {0: WorkerFailed(fate(1, 7, ran_for=3.0))}
    assert job.objections == ["node 1 (n1) is gone"]


def test_a_signal_ends_the_job_in_a_pause() -> None:
    """No other attempt begins."""
    job = quick()
    job.is_ended_externally(1, Interrupted(15))
    job.waits(10.0)

    assert job.verdicts == dict.fromkeys((0, 1), Interrupted(15))
    assert job.state.attempt.number == 2
