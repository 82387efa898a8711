"""The end of a running job: one stop for all nodes, and one verdict when all of them are done."""

import pytest

from tests.coordination.door import (
    FROM_COORDINATOR,
    LONGEST_LINE,
    MOST_EXTERNAL_CAUSES,
    EndedExternally,
    ExternalCause,
    HelperFailed,
    Interrupted,
    JobPhase,
    Killed,
    MemberGone,
    MemberSilent,
    MessageReceived,
    NodeLost,
    Notice,
    OutputGone,
    Stop,
    Succeeded,
    Verdict,
    WorkerFailed,
    dated_fates,
    framed,
)
from tests.rendezvous.nodes import fate, opened_job
from tests.rendezvous.replay import Replay, running

STOPPED = Killed(15)


def test_success_is_when_every_node_has_reported_it() -> None:
    """Early nodes wait for late ones."""
    job = running(3)
    for number in (2, 0):
        job.is_done(number, [(fate(number), 0.0)])
    before = dict(job.verdicts)
    job.is_done(1, [(fate(1), 0.0)])

    assert before == {}
    assert job.verdicts == dict.fromkeys((0, 1, 2), Succeeded())
    assert job.stops == {}
    assert job.state.phase is JobPhase.OVER


def test_the_first_failure_stops_every_node_at_once() -> None:
    """Later failures stop no other node."""
    job = running(3)
    job.fails(1, fate(1, 7))
    first = dict(job.stops)
    job.fails(2, fate(2, 1))

    assert first == dict.fromkeys((0, 1, 2), "rank 1 on n1 failed")
    assert job.stops == first


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_a_member_that_reports_a_rank_of_another_node_is_lost(rank: int) -> None:
    """What became of that worker is unknown, and the member's other messages can't be trusted."""
    job = Replay(opened_job(3, workers=1))
    job.joins(1, rank=1, workers=2)
    job.joins(2, rank=2)
    job.fails(1, fate(rank, 7))
    job.is_done(1, [(fate(1), 1.0), (fate(2), 1.0)])

    assert job.disconnected == [1]
    assert job.stops == dict.fromkeys((0, 2), "node 1 (n1) is gone")


def test_a_report_with_another_nodes_rank_is_dropped() -> None:
    """Also if it has the member's own ranks."""
    job = running(2)
    job.is_done(1, [(fate(1), 1.0), (fate(0, 3), 1.0)])

    assert job.disconnected == [1]
    assert job.stops == {0: "node 1 (n1) is gone"}


def test_the_order_to_stop_has_the_external_cause() -> None:
    """The same cause may kill node 0 before it sends a verdict."""
    job = running(2)

    job.is_ended_externally(0, Interrupted(15))

    assert job.sent_to(1)[1:] == [Stop(0, "n0 got SIGTERM", Interrupted(15))]


def test_only_the_first_external_causes_are_kept() -> None:
    """A scheduler signals all nodes; a faulty node may report new causes without end."""
    job = running(3)
    for number in (0, 1, 2):
        job.is_ended_externally(number, Interrupted(15))
    told_once = list(job.state.attempt.external_causes)
    for number in range(1000):
        job.is_ended_externally(1, Interrupted(number))

    assert told_once == [Interrupted(15)]
    assert len(job.state.attempt.external_causes) == MOST_EXTERNAL_CAUSES


def test_one_cause_for_all_nodes() -> None:
    """The earliest failure by age, in any order of reports."""
    job = Replay(opened_job(2, workers=2))
    job.joins(1, workers=2)
    cause, echo = fate(3, 7), fate(0, 1)
    job.fails(0, echo)
    job.now = 10.0
    job.is_done(0, [(echo, 1.0)])
    job.now = 20.0
    job.is_done(1, [(fate(2, ending=STOPPED, stopped_by_us=True), 1.0), (cause, 11.5)])

    assert job.verdicts == dict.fromkeys((0, 1), WorkerFailed(cause))


def test_the_cause_is_chosen_among_all_fates_in_the_order_of_their_ends() -> None:
    """Those of all nodes together."""
    job = Replay(opened_job(2, workers=2))
    job.joins(1, workers=2)
    job.now = 100.0
    job.is_done(0, [(fate(0, 1), 5.0), (fate(1, 1), 1.0)])
    job.now = 103.0
    job.is_done(1, [(fate(2, 1), 9.0), (fate(3, 1), 3.5)])

    assert [each.rank for _, _, each in dated_fates(job.state)] == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("external_cause", "why", "reason"),
    [
        (Interrupted(15), "n1 got SIGTERM", Interrupted(15)),
        (Interrupted(35), "n1 got signal 35", Interrupted(35)),
        (OutputGone(), "the output of n1 is closed", OutputGone()),
        (
            HelperFailed("relay", "was killed by SIGKILL", 9),
            "the relay on n1 was killed by SIGKILL",
            HelperFailed("relay on n1", "was killed by SIGKILL", 9),
        ),
    ],
)
def test_an_external_cause_stops_every_node(
    external_cause: ExternalCause, why: str, reason: ExternalCause
) -> None:
    """It is the reason, however the stopped workers exit."""
    job = running(2)
    job.is_ended_externally(1, external_cause)
    stopped = dict(job.stops)
    for number in (0, 1):
        traceback = fate(number, 1, stopped_by_us=True, tail="Traceback: KeyboardInterrupt")
        job.is_done(number, [(traceback, 0.0)])

    assert stopped == dict.fromkeys((0, 1), why)
    assert job.verdicts == dict.fromkeys((0, 1), reason)


def test_the_longest_name_of_a_helper_process_is_sent_on() -> None:
    """A message that one member may send, node 0 may send on: the others don't lose node 0."""
    job = running(2)
    job.is_ended_externally(1, HelperFailed("x" * LONGEST_LINE, "exited", 0))
    for number in (0, 1):
        job.is_done(number, [(fate(number, 1, stopped_by_us=True), 0.0)])

    verdict = Verdict(job.verdicts[0], "")
    assert list(FROM_COORDINATOR.take(bytearray(framed(verdict)))) == [verdict]


def test_a_failure_before_a_signal_is_the_cause() -> None:
    """The scheduler's SIGTERM comes after a rank has failed."""
    job = running(2)
    job.fails(0, fate(0, 3))
    job.is_ended_externally(1, Interrupted(15))
    job.is_done(0, [(fate(0, 3), 1.0)])
    job.is_done(1, [(fate(1, ending=STOPPED, stopped_by_us=True), 0.5)], Interrupted(15))

    assert job.verdicts[0] == WorkerFailed(fate(0, 3))


def test_a_lost_node_stops_the_others_and_is_the_cause() -> None:
    """Its peers' failures are consequences."""
    job = running(3)
    job.goes(1)
    stopped = dict(job.stops)
    for number in (0, 2):
        job.is_done(number, [(fate(number, 1, tail="connection reset by peer"), 0.0)])

    assert stopped == dict.fromkeys((0, 2), "node 1 (n1) is gone")
    assert job.verdicts == dict.fromkeys((0, 2), NodeLost(1, "n1"))


def test_a_lost_node_is_the_cause_even_if_a_consequence_was_reported_first() -> None:
    """Workers may notice a dead peer before its agent's connection ends."""
    job = running(3)
    job.fails(0, fate(0, 1))
    job.goes(1)
    job.is_done(0, [(fate(0, 1), 1.0)])
    job.is_done(2, [(fate(2, 1), 0.9)])

    assert set(job.verdicts.values()) == {NodeLost(1, "n1")}


def test_the_verdict_does_not_wait_for_lost_nodes() -> None:
    """The last node without a report is lost."""
    job = running(2)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])

    job.goes(1)

    assert job.verdicts == {0: NodeLost(1, "n1")}


def test_the_signal_is_the_cause_of_nodes_lost_after_it() -> None:
    """Scancel sends SIGKILL to nodes that take too long."""
    job = running(2)
    job.is_ended_externally(0, Interrupted(15))
    job.goes(1)
    job.is_done(0, [], Interrupted(15))

    assert job.verdicts == {0: Interrupted(15)}


def test_an_agent_that_disconnects_after_its_report_is_not_lost() -> None:
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])
    job.goes(1)
    job.is_done(0, [(fate(0), 0.0)])

    assert job.verdicts[0] == Succeeded()


def test_a_failure_in_a_report_only_stops_the_others() -> None:
    """All workers of a node failed at once."""
    job = running(2)

    job.is_done(1, [(fate(1, 5), 0.0)])

    assert job.stops == dict.fromkeys((0, 1), "rank 1 on n1 failed")


def test_an_external_cause_in_a_report_only_stops_the_others() -> None:
    job = running(2)

    job.is_done(1, [], OutputGone())

    assert job.stops == dict.fromkeys((0, 1), "the output of n1 is closed")


def test_an_announced_failure_is_no_success_even_without_a_cause() -> None:
    """The reports may have only stopped workers."""
    job = running(2)
    job.fails(1, fate(1, 9))
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.is_done(1, [(fate(1, ending=STOPPED, stopped_by_us=True), 0.0)])

    assert job.verdicts[0] == WorkerFailed(fate(1, 9))


def test_messages_after_a_report_are_ignored() -> None:
    """A second report could contradict the first."""
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])

    job.is_done(1, [(fate(1, 3), 0.0)])

    assert job.disconnected == [1]
    assert job.stops == {}


def test_a_node_that_is_done_early_prints_each_minute_which_nodes_still_run() -> None:
    """Nodes that still run print their own lines."""
    job = running(3)
    job.is_done(1)
    job.waits(130)
    job.is_done(2)
    job.waits(60)

    text = "all workers of this node have exited; still running: {}"
    both, one = Notice(text.format("n0, n2")), Notice(text.format("n0"))
    assert job.sent_to(1)[1:] == [both, both, one]
    assert job.sent_to(2)[1:] == [one]
    assert job.sent_to(0)[1:] == []


def test_a_success_stops_no_node() -> None:
    """Nodes may end at different times."""
    job = running(2)

    job.is_done(1, [(fate(1), 0.0)])

    assert job.stops == {}


def test_a_silent_node_stops_the_others_and_receives_the_stop() -> None:
    """It may be frozen, and be continued when the others have ended."""
    job = running(3)
    job.is_silent(1)
    stopped = dict(job.stops)
    for number in (0, 2):
        job.is_done(number, [(fate(number, ending=STOPPED, stopped_by_us=True), 0.0)])

    lost = NodeLost(1, "n1", "has been silent for 15 s")
    assert stopped == dict.fromkeys((0, 1, 2), "node 1 (n1) has been silent for 15 s")
    assert job.verdicts == dict.fromkeys((0, 1, 2), lost)
    assert job.disconnected == [1]


def test_a_host_that_does_not_respond_is_silent() -> None:
    """The kernel may detect it first."""
    job = running(2)
    job.happens(MemberGone(1, "", 20.0, unreachable=True))

    assert job.stops == {0: "node 1 (n1) has been silent for 15 s"}


def test_a_silent_node_that_has_reported_is_not_lost() -> None:
    """No message of it is awaited."""
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])
    job.is_silent(1)
    job.is_done(0, [(fate(0), 0.0)])

    assert job.disconnected == [1]
    assert job.verdicts == dict.fromkeys((0, 1), Succeeded())
    assert job.stops == {}


def test_a_failure_well_before_a_loss_is_the_cause() -> None:
    """Its node, or another one, is lost while all of them stop."""
    job = running(3)
    job.now = 100.0
    job.fails(2, fate(2, 3), age=0.1)
    job.now = 105.0
    job.goes(1)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 1.0)])
    job.is_done(2, [(fate(2, 3), 5.1)])

    assert set(job.verdicts.values()) == {WorkerFailed(fate(2, 3))}


def test_a_lost_node_receives_what_the_others_receive() -> None:
    """It was frozen while all stopped for another node's failure."""
    job = running(3)
    job.now = 100.0
    job.fails(2, fate(2, 3))
    job.now = 120.0
    job.is_silent(1)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 1.0)])
    job.is_done(1, [(fate(1, 4), 0.0)])
    job.is_done(2, [(fate(2, 3), 20.0)])

    assert job.stops[1] == "rank 2 on n2 failed"
    assert job.verdicts == dict.fromkeys((0, 1, 2), WorkerFailed(fate(2, 3)))
    assert job.disconnected == [1]


def test_a_lost_node_is_dated_by_the_start_of_its_silence() -> None:
    """Peers of an unreachable node may fail long before it counts as lost."""
    job = running(3)
    job.now = 100.0
    job.fails(2, fate(2, 3))
    job.now = 114.0
    job.is_silent(1)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 1.0)])
    job.is_done(2, [(fate(2, 3), 14.0)])

    lost = NodeLost(1, "n1", "has been silent for 15 s")
    assert set(job.verdicts.values()) == {lost}


def test_a_failure_on_the_node_that_is_lost_is_the_cause() -> None:
    """A scheduler may end a node whose task has failed; after the loss no worker can fail there."""
    job = running(2)
    job.fails(1, fate(1, 3), age=0.1)
    job.goes(1)
    job.is_done(0, [(fate(0, 1, tail="connection reset by peer"), 0.0)])

    assert job.verdicts == {0: WorkerFailed(fate(1, 3))}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_two_failures_at_once_have_one_cause(order: tuple[int, ...]) -> None:
    """The earlier one, in any order of reports."""
    job = running(3)
    failures = {0: (fate(0, 5), 2.0), 1: (fate(1, 6), 2.001), 2: (fate(2, 7), 1.999)}
    for number in order:
        job.fails(number, *failures[number])
    for number in order:
        job.is_done(number, [failures[number]])

    assert job.verdicts == dict.fromkeys((0, 1, 2), WorkerFailed(fate(1, 6)))


def test_a_lost_nodes_report_may_be_a_consequence_of_another_loss() -> None:
    """Node 0 was frozen: one node lost it, and another failed as a consequence."""
    job = running(3)
    job.fails(2, fate(2, 1), age=0.1)
    job.goes(2)
    job.goes(1)
    job.is_done(0, [(fate(0, 1, tail="connection reset by peer"), 0.0)])

    assert job.verdicts == {0: NodeLost(2, "n2")}


def test_a_lost_member_is_not_lost_again() -> None:
    """Its silence is known."""
    job = Replay(opened_job(3))
    for number in (1, 2):
        job.joins(number, rank=number)
    job.goes(1)

    assert job.happens(MemberSilent(1, job.now)) == ()


def test_an_end_at_once_is_ordered_also_after_a_stop() -> None:
    """Workers that have their grace period are killed on all nodes."""
    job = running(2)
    job.is_ended_externally(1, Interrupted(15))
    job.happens(MessageReceived(0, EndedExternally(0, Interrupted(15), at_once=True), job.now))

    orders = [message for _, message in job.sent if isinstance(message, Stop)]
    assert [order.at_once for order in orders] == [False, False, True, True]
