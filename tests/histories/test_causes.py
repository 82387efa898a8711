"""Which of several failures all nodes report as the cause, and whose reports count."""

import itertools
import signal

import pytest

from tests.histories.job_history import Job, refused
from tests.histories.worlds import stops

RESET = "RuntimeError: connection reset by peer"


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_earliest_failure_is_cause(order: tuple[int, ...]) -> None:
    """A millisecond is enough, in whatever order nodes report."""
    job = Job(nodes=3)

    for rank in order:
        job.exits(rank, code=5 + rank).time_passes(0.001)

    end = f"ends with {5 + order[0]}: rank {order[0]} failed"
    assert job.settles().new_lines()[-3:] == [f"node 0 {end}", f"node 1 {end}", f"node 2 {end}"]


@pytest.mark.parametrize(
    ("seconds", "end"),
    [(17, "ends with 5: node 1 has been silent for 18 s"), (20, "ends with 3: rank 2 failed")],
)
def test_loss_of_silent_node_dates_from_its_last_message(seconds: float, end: str) -> None:
    """Peers of an unreachable node may fail long before it counts as lost."""
    job = Job(nodes=3)

    job.freezes(1).exits(2, code=3).settles().time_passes(seconds).goes_silent(1).settles()
    job.dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-2:] == [f"node 0 {end}", f"node 2 {end}"]


def test_frozen_node_ends_like_the_others() -> None:
    """The others stopped for another node's failure; what it reports when it continues is ignored."""
    job = Job(nodes=3)
    job.freezes(1).exits(2, code=3).settles().time_passes(20).goes_silent(1).settles().new_lines()

    assert job.continues(1).settles().new_lines() == [
        "node 1 prints: rank 2 on n2 failed: stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
    ]
    job.exits(1, code=4).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-3:] == [
        "node 0 ends with 3: rank 2 failed",
        "node 1 ends with 3: rank 2 failed",
        "node 2 ends with 3: rank 2 failed",
    ]


def test_first_of_two_lost_nodes_is_cause() -> None:
    """The failure that it reported may be a consequence of the other's loss."""
    job = Job(nodes=3)

    job.exits(2, code=1).delivers_all().loses_node(2).loses_node(1).exits(
        0, code=1, last=RESET
    ).settles()

    assert job.new_lines()[-1] == "node 0 ends with 5: node 2 is gone"


@pytest.mark.parametrize(
    ("since", "seconds", "end"),
    [
        (0.0, 0.1, "ends with 5: node 1 is gone"),
        (0.5, 0.1, "ends with 5: node 1 is gone"),
        (0.0, 2.0, "ends with 3: rank 0 failed"),
        (0.5, 2.0, "ends with 4: rank 1 failed"),
    ],
)
def test_node_lost_after_own_failure(since: float, seconds: float, end: str) -> None:
    """All stopped for another reason; only a failure clearly before the loss is the cause."""
    job = Job(nodes=2)
    job.exits(0, code=3).exits(1, code=4, since=since)

    job.delivers_all().time_passes(seconds).loses_node(1).settles()

    assert job.new_lines()[-1] == f"node 0 {end}"


def test_losses_of_earlier_attempts_do_not_count() -> None:
    """A failure well before the next loss is the cause, though a node was lost in the last attempt."""
    job = Job(nodes=3, spares=2)
    stops(job.loses_node(1), 0, 2)

    job.exits(2, code=3).settles().time_passes(5).loses_node(3)

    assert stops(job, 0)[0] == "node 0 ends with 3: rank 2 failed"


def test_node_is_lost_once() -> None:
    """It is silent and then disconnects, or the reverse; the first event is the cause."""
    gone, silent = Job(nodes=3), Job(nodes=3)
    gone.loses_node(1).settles().new_lines()
    silent.goes_silent(1).settles().new_lines()

    assert gone.goes_silent(1).settles().new_lines() == []
    assert silent.loses_node(1).settles().new_lines() == []
    assert stops(gone, 0, 2)[0] == "node 0 ends with 5: node 1 is gone"
    assert stops(silent, 0, 2)[0] == "node 0 ends with 5: node 1 has been silent for 18 s"


def test_unreachable_host_is_silent() -> None:
    """The kernel may notice it before the coordinator."""
    job = Job(nodes=2)

    assert job.loses_host(1).settles().new_lines() == [
        "node 0 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]


def test_silent_node_is_not_lost_after_report() -> None:
    """No more messages of it are needed; it gets the verdict when it continues."""
    job = Job(nodes=2)
    job.exits(1).settles().goes_silent(1).settles().new_lines()

    assert job.exits(0).settles().new_lines()[1:] == [
        "node 0 ends with 0: all ranks have succeeded"
    ]
    assert job.continues(1).settles().new_lines() == [
        "node 1 ends with 0: all ranks have succeeded"
    ]


def test_rank_killed_before_its_peers_failed_is_cause() -> None:
    """The kernel closes its connections first. The agent has sent SIGTERM, but not SIGKILL, by then."""
    consequence, reason = Job(nodes=2), Job(nodes=2)

    consequence.exits(0, code=1, last=RESET).settles().time_passes(3).dies(1).settles()
    reason.exits(0, code=1, last="ValueError: a bad batch").settles().time_passes(3).dies(
        1
    ).settles()

    assert consequence.new_lines()[-1] == "node 1 ends with 137: rank 1 failed"
    assert reason.new_lines()[-1] == "node 1 ends with 1: rank 0 failed"


def test_rank_killed_by_launcher_is_not_cause() -> None:
    """It did not end within the grace period, whatever its peers print."""
    job = Job(nodes=2)

    job.exits(0, code=1, last=RESET).settles().time_passes(25).dies(1).settles()

    assert job.new_lines()[-1] == "node 1 ends with 1: rank 0 failed"


def test_external_cause_on_one_node_ends_all() -> None:
    """It is the cause, however the stopped ranks end; no restart follows."""
    reader, relay = Job(nodes=2, restarts=3), Job(nodes=2, restarts=3)

    assert reader.output_is_closed(1).settles().new_lines()[2:] == [
        "node 0 prints: the output of n1 is closed: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert relay.loses_relay(1).settles().new_lines()[1:] == [
        "node 0 prints: the relay on n1 exited with code 1: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    for job in (reader, relay):
        job.exits(0, 1, code=1, last="KeyboardInterrupt").settles()
    assert reader.new_lines()[-2:] == [
        "node 0 ends with 141: nobody reads its output",
        "node 1 ends with 141: nobody reads its output",
    ]
    end = (
        "ends with 6: its relay on n1 exited with code 1"
        " (no restart: no other attempt can start without its relay on n1)"
    )
    assert relay.new_lines()[-2:] == [f"node 0 {end}", f"node 1 {end}"]


def test_fork_server_lost_after_peer_failed() -> None:
    """The kernel kills its ranks. A rank that lost its peer is not the cause, but one that failed by itself is."""
    consequence, reason = Job(nodes=2), Job(nodes=2)

    consequence.exits(0, code=1, last=RESET).settles().loses_fork_server(1).settles()
    reason.exits(0, code=1, last="ValueError: a bad batch").settles().loses_fork_server(1).settles()
    for job in (consequence, reason):
        job.is_cleaned_up(1).settles()

    assert (
        consequence.new_lines()[-1]
        == "node 1 ends with 137: its fork server on n1 was killed by SIGKILL"
    )
    assert reason.new_lines()[-1] == "node 1 ends with 1: rank 0 failed"


def test_signal_to_all_processes_is_not_a_failure() -> None:
    """A scheduler signals all processes at once, and a rank may end first."""
    job = Job(nodes=2, restarts=1)

    job.dies(1, by=signal.SIGTERM).time_passes(0.5).signalled(signal.SIGTERM).settles()
    job.signalled(signal.SIGTERM, node=1).dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


@pytest.mark.parametrize(
    ("last", "seconds", "end"),
    [
        (RESET, 0.5, "ends with 143: it got SIGTERM"),
        (RESET, 3.0, "ends with 1: rank 0 failed"),
        ("ValueError: a bad batch", 0.5, "ends with 1: rank 0 failed"),
    ],
)
def test_rank_fails_because_signal_stopped_its_peer(last: str, seconds: float, end: str) -> None:
    """Its failure may be reported before the signal; a later signal is a response to the failure."""
    job = Job(nodes=2)

    job.exits(0, code=1, last=last).delivers_all().time_passes(seconds).signalled(
        signal.SIGTERM, node=1
    )
    job.settles().dies(1, by=signal.SIGTERM).settles()

    assert job.new_lines()[-1] == f"node 1 {end}"


@pytest.mark.parametrize("in_report", [False, True])
@pytest.mark.parametrize("rank", [0, 1, 9])
def test_node_that_reports_foreign_rank_is_lost(rank: int, *, in_report: bool) -> None:
    """How that rank ended is unknown, and nothing that the agent sends can be trusted."""
    job = Job(nodes=2, workers=2)

    assert job.reports_failed(1, rank, in_report=in_report).settles().new_lines() == [
        refused("Done" if in_report else "FirstFailure"),
        "node 0 prints: node 1 (n1) is gone: stopping 2 workers on this node",
        "node 0 sends SIGTERM to ranks 0-1",
        "node 1 prints: node 0 (n0) is gone: stopping 2 workers on this node",
        "node 1 sends SIGTERM to ranks 2-3",
    ]


@pytest.mark.parametrize("in_report", [False, True])
def test_second_report_disconnects_node(*, in_report: bool) -> None:
    """A second report could disagree with the first; the job continues."""
    job = Job(nodes=2)
    job.exits(1).settles().new_lines()

    job.reports_failed(1, 1, in_report=in_report)
    assert job.settles().new_lines() == [
        refused("Done" if in_report else "FirstFailure"),
        "node 1 ends with 5: node 0 is gone",
    ]
    assert job.exits(0).settles().new_lines()[-1] == "node 0 ends with 0: all ranks have succeeded"


@pytest.mark.parametrize("in_report", [False, True])
def test_failure_counts_once_however_reported(*, in_report: bool) -> None:
    """It is reported at once, and the report has only stopped ranks; or only in the report."""
    job = Job(nodes=2)

    job.reports_failed(1, 1, in_report=in_report).settles()

    assert job.new_lines()[:2] == [
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    ranks = (0,) if in_report else (0, 1)
    assert "node 0 ends with 9: rank 1 failed" in stops(job, *ranks)
