"""Which of several things that went wrong all nodes report, and whose reports count."""

import itertools
import signal

import pytest

from tests.histories.job_history import Job, refused
from tests.histories.worlds import stops

RESET = "RuntimeError: connection reset by peer"


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
def test_of_failures_at_once_the_earliest_is_the_cause(order: tuple[int, ...]) -> None:
    """A millisecond is enough, in whatever order nodes report."""
    job = Job(nodes=3)

    for rank in order:
        job.exits(rank, code=5 + rank).passes(0.001)

    end = f"ends with {5 + order[0]}: rank {order[0]} failed"
    assert job.settles().saw()[-3:] == [f"node 0 {end}", f"node 1 {end}", f"node 2 {end}"]


@pytest.mark.parametrize(
    ("seconds", "end"),
    [(17, "ends with 5: node 1 has been silent for 18 s"), (20, "ends with 3: rank 2 failed")],
)
def test_a_silent_node_was_lost_when_its_silence_began(seconds: float, end: str) -> None:
    """Peers of an unreachable node may fail long before it counts as lost."""
    job = Job(nodes=3)

    job.freezes(1).exits(2, code=3).settles().passes(seconds).misses(1).settles()
    job.dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-2:] == [f"node 0 {end}", f"node 2 {end}"]


def test_a_frozen_node_ends_as_the_others_do() -> None:
    """They stopped for another node's failure; what it reports when it goes on is ignored."""
    job = Job(nodes=3)
    job.freezes(1).exits(2, code=3).settles().passes(20).misses(1).settles().saw()

    assert job.thaws(1).settles().saw() == [
        "node 1 prints: rank 2 on n2 failed: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    job.exits(1, code=4).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-3:] == [
        "node 0 ends with 3: rank 2 failed",
        "node 1 ends with 3: rank 2 failed",
        "node 2 ends with 3: rank 2 failed",
    ]


def test_of_two_lost_nodes_the_first_is_the_cause() -> None:
    """The failure that it reported may be a consequence of the other's loss."""
    job = Job(nodes=3)

    job.exits(2, code=1).hears().loses_node(2).loses_node(1).exits(0, code=1, last=RESET).settles()

    assert job.saw()[-1] == "node 0 ends with 5: node 2 is gone"


@pytest.mark.parametrize(
    ("since", "seconds", "end"),
    [
        (0.0, 0.1, "ends with 5: node 1 is gone"),
        (0.5, 0.1, "ends with 5: node 1 is gone"),
        (0.0, 2.0, "ends with 3: rank 0 failed"),
        (0.5, 2.0, "ends with 4: rank 1 failed"),
    ],
)
def test_a_node_is_lost_after_a_failure_of_its_own(since: float, seconds: float, end: str) -> None:
    """It was not the one for which all stopped: only a failure clearly before the loss is the cause."""
    job = Job(nodes=2)
    job.exits(0, code=3).exits(1, code=4, since=since)

    job.hears().passes(seconds).loses_node(1).settles()

    assert job.saw()[-1] == f"node 0 {end}"


def test_each_attempt_dates_its_own_losses() -> None:
    """A failure well before the next loss is the cause, though a node was lost before."""
    job = Job(nodes=3, spares=2)
    stops(job.loses_node(1), 0, 2)

    job.exits(2, code=3).settles().passes(5).loses_node(3)

    assert stops(job, 0)[0] == "node 0 ends with 3: rank 2 failed"


def test_a_lost_node_is_lost_once() -> None:
    """First silent, then gone, or the other way round: the first of it is the cause."""
    gone, silent = Job(nodes=3), Job(nodes=3)
    gone.loses_node(1).settles().saw()
    silent.misses(1).settles().saw()

    assert gone.misses(1).settles().saw() == []
    assert silent.loses_node(1).settles().saw() == []
    assert stops(gone, 0, 2)[0] == "node 0 ends with 5: node 1 is gone"
    assert stops(silent, 0, 2)[0] == "node 0 ends with 5: node 1 has been silent for 18 s"


def test_a_host_without_power_is_silent() -> None:
    """The kernel may notice it first."""
    job = Job(nodes=2)

    assert job.loses_host(1).settles().saw() == [
        "node 0 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]


def test_a_silent_node_that_has_reported_is_not_lost() -> None:
    """Nothing more of it is needed; it has the answer when it goes on."""
    job = Job(nodes=2)
    job.exits(1).settles().misses(1).settles().saw()

    assert job.exits(0).settles().saw()[1:] == ["node 0 ends with 0: all ranks have succeeded"]
    assert job.thaws(1).settles().saw() == ["node 1 ends with 0: all ranks have succeeded"]


def test_a_killed_rank_may_be_gone_after_its_peers_have_failed() -> None:
    """The kernel closes its connections first: its agent has sent SIGTERM, and no SIGKILL, by then."""
    consequence, reason = Job(nodes=2), Job(nodes=2)

    consequence.exits(0, code=1, last=RESET).settles().passes(3).dies(1).settles()
    reason.exits(0, code=1, last="ValueError: a bad batch").settles().passes(3).dies(1).settles()

    assert consequence.saw()[-1] == "node 1 ends with 137: rank 1 failed"
    assert reason.saw()[-1] == "node 1 ends with 1: rank 0 failed"


def test_a_rank_that_the_launcher_kills_is_not_a_cause() -> None:
    """It did not end within the grace period, whatever its peers print."""
    job = Job(nodes=2)

    job.exits(0, code=1, last=RESET).settles().passes(25).dies(1).settles()

    assert job.saw()[-1] == "node 1 ends with 1: rank 0 failed"


def test_what_ends_one_node_ends_all() -> None:
    """It is the cause, however ranks end that are stopped for it; no restart follows."""
    reader, relay = Job(nodes=2, restarts=3), Job(nodes=2, restarts=3)

    assert reader.loses_reader(1).settles().saw()[2:] == [
        "node 0 prints: the output of n1 is closed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert relay.loses_relay(1).settles().saw()[1:] == [
        "node 0 prints: the relay on n1 exited with code 1: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    for job in (reader, relay):
        job.exits(0, 1, code=1, last="KeyboardInterrupt").settles()
    assert reader.saw()[-2:] == [
        "node 0 ends with 141: nobody reads its output",
        "node 1 ends with 141: nobody reads its output",
    ]
    end = (
        "ends with 6: its relay on n1 exited with code 1"
        " (no restart: no other attempt can start without its relay on n1)"
    )
    assert relay.saw()[-2:] == [f"node 0 {end}", f"node 1 {end}"]


def test_a_fork_server_that_is_lost_after_a_peer_has_failed() -> None:
    """The kernel kills its ranks with it: one that lost its peer is no cause, one of its own is."""
    consequence, reason = Job(nodes=2), Job(nodes=2)

    consequence.exits(0, code=1, last=RESET).settles().loses_fork_server(1).settles()
    reason.exits(0, code=1, last="ValueError: a bad batch").settles().loses_fork_server(1).settles()
    for job in (consequence, reason):
        job.is_clean(1).settles()

    assert (
        consequence.saw()[-1] == "node 1 ends with 137: its fork server on n1 was killed by SIGKILL"
    )
    assert reason.saw()[-1] == "node 1 ends with 1: rank 0 failed"


def test_a_signal_to_ranks_and_agents_of_all_nodes() -> None:
    """A scheduler signals all processes at once: it may end a rank first, and is no failure."""
    job = Job(nodes=2, restarts=1)

    job.dies(1, by=signal.SIGTERM).passes(0.5).signalled(signal.SIGTERM).settles()
    job.signalled(signal.SIGTERM, node=1).dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-2:] == [
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
def test_a_rank_fails_as_its_peer_is_stopped_by_a_signal(
    last: str, seconds: float, end: str
) -> None:
    """Its failure may be heard of before the signal; a later one is an answer to the failure."""
    job = Job(nodes=2)

    job.exits(0, code=1, last=last).hears().passes(seconds).signalled(signal.SIGTERM, node=1)
    job.settles().dies(1, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == f"node 1 {end}"


@pytest.mark.parametrize("in_report", [False, True])
@pytest.mark.parametrize("rank", [0, 1, 9])
def test_a_node_that_reports_a_rank_of_another_is_lost(rank: int, *, in_report: bool) -> None:
    """What became of that rank is unknown, and nothing that the agent sends can be trusted."""
    job = Job(nodes=2, workers=2)

    assert job.reports_failed(1, rank, in_report=in_report).settles().saw() == [
        refused("Done" if in_report else "FirstFailure"),
        "node 0 prints: node 1 (n1) is gone: stopping 2 workers here",
        "node 0 sends SIGTERM to ranks 0-1",
        "node 1 prints: node 0 (n0) is gone: stopping 2 workers here",
        "node 1 sends SIGTERM to ranks 2-3",
    ]


@pytest.mark.parametrize("in_report", [False, True])
def test_a_report_is_the_last_word_of_a_node(*, in_report: bool) -> None:
    """Another could contradict it: its sender is cut off, and the job goes on."""
    job = Job(nodes=2)
    job.exits(1).settles().saw()

    job.reports_failed(1, 1, in_report=in_report)
    assert job.settles().saw() == [
        refused("Done" if in_report else "FirstFailure"),
        "node 1 ends with 5: node 0 is gone",
    ]
    assert job.exits(0).settles().saw()[-1] == "node 0 ends with 0: all ranks have succeeded"


@pytest.mark.parametrize("in_report", [False, True])
def test_a_failure_is_one_however_it_was_reported(*, in_report: bool) -> None:
    """Alone, while the report has only ranks that were stopped; or in the report, and not before."""
    job = Job(nodes=2)

    job.reports_failed(1, 1, in_report=in_report).settles()

    assert job.saw()[:2] == [
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    ranks = (0,) if in_report else (0, 1)
    assert "node 0 ends with 9: rank 1 failed" in stops(job, *ranks)
