"""A running job ends: one stop for all nodes, and one verdict when all of them are done."""

import pytest
from clusterrun.coordination.ending import MOST_EXTERNAL_CAUSES
from clusterrun.coordination.events import MemberGone
from clusterrun.coordination.messages import Notice, Stop, Verdict
from clusterrun.coordination.state import Phase
from clusterrun.coordination.verdict import dated_fates
from clusterrun.domain.bounds import LONGEST_LINE
from clusterrun.domain.outcome import (
    ExternalCause,
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    OutputGone,
    Succeeded,
    WorkerFailed,
)
from clusterrun.rendezvous.wire.frames import FROM_COORDINATOR, framed

from tests.rendezvous.nodes import fate, terms
from tests.rendezvous.replay import Replay

STOPPED = Killed(15)


def running(nodes: int) -> Replay:
    """Return a job whose ``nodes`` nodes are all there."""
    job = Replay(terms(nodes))
    for number in range(1, nodes):
        job.joins(number, rank=number)
    return job


def test_success_is_when_every_node_has_said_so() -> None:
    """The early ones wait for the late ones."""
    job = running(3)
    for number in (2, 0):
        job.is_done(number, [(fate(number), 0.0)])
    before = dict(job.verdicts)
    job.is_done(1, [(fate(1), 0.0)])

    assert before == {}
    assert job.verdicts == dict.fromkeys((0, 1, 2), Succeeded())
    assert job.stops == {}
    assert job.state.phase is Phase.OVER


def test_the_first_failure_stops_every_node_at_once() -> None:
    """And later ones nobody any more."""
    job = running(3)
    job.fails(1, fate(1, 7))
    first = dict(job.stops)
    job.fails(2, fate(2, 1))

    assert first == dict.fromkeys((0, 1, 2), "rank 1 on n1 failed")
    assert job.stops == first


@pytest.mark.parametrize("rank", [0, 3, 9])
def test_a_member_that_reports_a_rank_of_another_node_is_lost(rank: int) -> None:
    """Nobody else knows what became of that worker, and what else it says can't be true either."""
    job = Replay(terms(3, workers=1))
    job.joins(1, rank=1, workers=2)
    job.joins(2, rank=2)
    job.fails(1, fate(rank, 7))
    job.is_done(1, [(fate(1), 1.0), (fate(2), 1.0)])

    assert job.hung_up_on == [1]
    assert job.stops == dict.fromkeys((0, 2), "node 1 (n1) is gone")


def test_a_report_of_another_nodes_rank_is_no_report() -> None:
    """Not even beside the member's own."""
    job = running(2)
    job.is_done(1, [(fate(1), 1.0), (fate(0, 3), 1.0)])

    assert job.hung_up_on == [1]
    assert job.stops == {0: "node 1 (n1) is gone"}


def test_the_order_to_stop_tells_what_came_from_outside() -> None:
    """Node 0 may be killed by the same hand before it can give a verdict."""
    job = running(2)

    job.is_ended_externally(0, Interrupted(15))

    assert job.heard_by(1)[1:] == [Stop(0, "n0 got SIGTERM", Interrupted(15))]


def test_a_flood_of_external_causes_is_not_kept() -> None:
    """A scheduler signals all nodes; a node that has gone mad tells of something new each time."""
    job = running(3)
    for number in (0, 1, 2):
        job.is_ended_externally(number, Interrupted(15))
    told_once = list(job.state.attempt.external_causes)
    for number in range(1000):
        job.is_ended_externally(1, Interrupted(number))

    assert told_once == [Interrupted(15)]
    assert len(job.state.attempt.external_causes) == MOST_EXTERNAL_CAUSES


def test_one_cause_for_all_nodes() -> None:
    """The earliest failure by age, whoever is heard first."""
    job = Replay(terms(2, workers=2))
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
    job = Replay(terms(2, workers=2))
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
def test_what_comes_from_outside_stops_every_node(
    external_cause: ExternalCause, why: str, reason: ExternalCause
) -> None:
    """And is the reason, whatever workers say that are made to end."""
    job = running(2)
    job.is_ended_externally(1, external_cause)
    stopped = dict(job.stops)
    for number in (0, 1):
        traceback = fate(number, 1, stopped_by_us=True, tail="Traceback: KeyboardInterrupt")
        job.is_done(number, [(traceback, 0.0)])

    assert stopped == dict.fromkeys((0, 1), why)
    assert job.verdicts == dict.fromkeys((0, 1), reason)


def test_the_longest_name_of_a_helper_travels_on() -> None:
    """What one member may say, the others may be told: they do not lose node 0 by it."""
    job = running(2)
    job.is_ended_externally(1, HelperFailed("x" * LONGEST_LINE, "exited", 0))
    for number in (0, 1):
        job.is_done(number, [(fate(number, 1, stopped_by_us=True), 0.0)])

    verdict = Verdict(job.verdicts[0], "")
    assert list(FROM_COORDINATOR.take(bytearray(framed(verdict)))) == [verdict]


def test_a_failure_before_a_signal_is_the_cause() -> None:
    """The scheduler's SIGTERM comes when a rank has failed."""
    job = running(2)
    job.fails(0, fate(0, 3))
    job.is_ended_externally(1, Interrupted(15))
    job.is_done(0, [(fate(0, 3), 1.0)])
    job.is_done(1, [(fate(1, ending=STOPPED, stopped_by_us=True), 0.5)], Interrupted(15))

    assert job.verdicts[0] == WorkerFailed(fate(0, 3))


def test_a_lost_node_stops_the_others_and_is_the_cause() -> None:
    """What its peers say are echoes."""
    job = running(3)
    job.goes(1)
    stopped = dict(job.stops)
    for number in (0, 2):
        job.is_done(number, [(fate(number, 1, tail="connection reset by peer"), 0.0)])

    assert stopped == dict.fromkeys((0, 2), "node 1 (n1) is gone")
    assert job.verdicts == dict.fromkeys((0, 2), NodeLost(1, "n1"))


def test_a_lost_node_is_the_cause_even_if_an_echo_was_heard_first() -> None:
    """Workers notice a dead peer sooner than its agent's connection ends."""
    job = running(3)
    job.fails(0, fate(0, 1))
    job.goes(1)
    job.is_done(0, [(fate(0, 1), 1.0)])
    job.is_done(2, [(fate(2, 1), 0.9)])

    assert set(job.verdicts.values()) == {NodeLost(1, "n1")}


def test_the_verdict_does_not_wait_for_the_dead() -> None:
    """The last node that was waited for is lost."""
    job = running(2)
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])

    job.goes(1)

    assert job.verdicts == {0: NodeLost(1, "n1")}


def test_nodes_lost_while_an_interrupted_job_ends_are_lost_to_the_signal() -> None:
    """Scancel sends SIGKILL to those that take too long."""
    job = running(2)
    job.is_ended_externally(0, Interrupted(15))
    job.goes(1)
    job.is_done(0, [], Interrupted(15))

    assert job.verdicts == {0: Interrupted(15)}


def test_an_agent_that_goes_when_it_is_done_is_not_lost() -> None:
    """All that it had to say is said."""
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])
    job.goes(1)
    job.is_done(0, [(fate(0), 0.0)])

    assert job.verdicts[0] == Succeeded()


def test_a_failure_that_nobody_announced_stops_the_others_all_the_same() -> None:
    """All workers of a node failed at once."""
    job = running(2)

    job.is_done(1, [(fate(1, 5), 0.0)])

    assert job.stops == dict.fromkeys((0, 1), "rank 1 on n1 failed")


def test_an_external_cause_that_was_not_announced_stops_the_others_all_the_same() -> None:
    """It is heard of with the report only."""
    job = running(2)

    job.is_done(1, [], OutputGone())

    assert job.stops == dict.fromkeys((0, 1), "the output of n1 is closed")


def test_what_was_announced_is_no_success_even_if_no_cause_is_found() -> None:
    """The reports may name workers alone that were stopped."""
    job = running(2)
    job.fails(1, fate(1, 9))
    job.is_done(0, [(fate(0, ending=STOPPED, stopped_by_us=True), 0.0)])
    job.is_done(1, [(fate(1, ending=STOPPED, stopped_by_us=True), 0.0)])

    assert job.verdicts[0] == WorkerFailed(fate(1, 9))


def test_who_has_reported_is_heard_no_more() -> None:
    """A second report could turn the first into a lie."""
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])

    job.is_done(1, [(fate(1, 3), 0.0)])

    assert job.hung_up_on == [1]
    assert job.stops == {}


def test_a_node_that_is_done_early_is_told_each_minute_for_whom_it_waits() -> None:
    """Those that still run print their own lines."""
    job = running(3)
    job.is_done(1)
    job.waits(130)
    job.is_done(2)
    job.waits(60)

    text = "all workers of this node have exited; still running: {}"
    both, one = Notice(text.format("n0, n2")), Notice(text.format("n0"))
    assert job.heard_by(1)[1:] == [both, both, one]
    assert job.heard_by(2)[1:] == [one]
    assert job.heard_by(0)[1:] == []


def test_nobody_is_told_to_stop_for_a_success() -> None:
    """Nodes may end at different times."""
    job = running(2)

    job.is_done(1, [(fate(1), 0.0)])

    assert job.stops == {}


def test_a_silent_node_stops_the_others_and_is_told_itself() -> None:
    """It may be frozen, and be continued when they have gone."""
    job = running(3)
    job.is_silent(1)
    stopped = dict(job.stops)
    for number in (0, 2):
        job.is_done(number, [(fate(number, ending=STOPPED, stopped_by_us=True), 0.0)])

    lost = NodeLost(1, "n1", "has been silent for 15 s")
    assert stopped == dict.fromkeys((0, 1, 2), "node 1 (n1) has been silent for 15 s")
    assert job.verdicts == dict.fromkeys((0, 1, 2), lost)
    assert job.hung_up_on == [1]


def test_a_host_that_answers_nothing_is_silent() -> None:
    """The kernel may know it before we do."""
    job = running(2)
    job.happens(MemberGone(1, "", 20.0, unreachable=True))

    assert job.stops == {0: "node 1 (n1) has been silent for 15 s"}


def test_a_silent_node_that_is_done_is_missed_by_nobody() -> None:
    """What it had to say is said; it is not waited for."""
    job = running(2)
    job.is_done(1, [(fate(1), 0.0)])
    job.is_silent(1)
    job.is_done(0, [(fate(0), 0.0)])

    assert job.hung_up_on == [1]
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


def test_a_node_that_was_given_up_hears_what_the_others_hear() -> None:
    """It was frozen while all stopped for the failure of another one."""
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
    assert job.hung_up_on == [1]


def test_a_silence_is_dated_by_its_beginning() -> None:
    """Peers of a node that was cut off may fail long before it is known to be lost."""
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
    """A scheduler may end a node whose task has failed; nothing fails on a node that is lost."""
    job = running(2)
    job.fails(1, fate(1, 3), age=0.1)
    job.goes(1)
    job.is_done(0, [(fate(0, 1, tail="connection reset by peer"), 0.0)])

    assert job.verdicts == {0: WorkerFailed(fate(1, 3))}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_two_failures_at_once_have_one_cause(order: tuple[int, ...]) -> None:
    """The earlier one, in whatever order their nodes are heard."""
    job = running(3)
    failures = {0: (fate(0, 5), 2.0), 1: (fate(1, 6), 2.001), 2: (fate(2, 7), 1.999)}
    for number in order:
        job.fails(number, *failures[number])
    for number in order:
        job.is_done(number, [failures[number]])

    assert job.verdicts == dict.fromkeys((0, 1, 2), WorkerFailed(fate(1, 6)))


def test_what_a_lost_node_said_may_be_the_echo_of_another_loss() -> None:
    """Node 0 was frozen: it learns only now that one node gave it up, and another failed for that."""
    job = running(3)
    job.fails(2, fate(2, 1), age=0.1)
    job.goes(2)
    job.goes(1)
    job.is_done(0, [(fate(0, 1, tail="connection reset by peer"), 0.0)])

    assert job.verdicts == {0: NodeLost(2, "n2")}
