"""A node has lost node 0, or was declared lost: its ranks must not run on."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.job_history import Job
from tests.histories.worlds import of_node

SILENT = "node 0 (n0) has been silent for 17 s: killing 2 workers on this node"
GIVEN_UP = (
    "node 0 has declared this node lost, as it has been silent for 18 s: killing 2 workers on this"
    " node; rejoining"
)


def outliving() -> Job:
    """Return a job of two nodes that may go on without one of them."""
    return Job(nodes=2, workers=2, spares=1)


@pytest.mark.parametrize(
    ("cut_off", "line", "end"),
    [
        (Job.is_cut_off, SILENT, "ends with 5: node 0 has been silent for 17 s"),
        (Job.is_declared_lost, GIVEN_UP, "joins again"),
    ],
    ids=["silent", "given up"],
)
def test_ranks_are_killed_if_node_0_may_continue(
    cut_off: Callable[[Job, int], Job], line: str, end: str
) -> None:
    """In a grace period they would save what the next attempt saves as well; even ranks that are stopping are killed."""
    kills = [f"node 1 prints: {line}", "node 1 sends SIGKILL to ranks 2-3 and all they started"]
    running, stopping, ended, killed = outliving(), outliving(), outliving(), outliving()
    stopping.exits(0, code=3).settles().new_lines()
    ended.exits(2, 3).new_lines()
    killed.exits(0, code=3).settles().time_passes(25).new_lines()

    for job in (running, stopping):
        assert of_node(1, cut_off(job, 1).new_lines())[:2] == kills
        assert of_node(1, job.dies(2, 3).settles().new_lines())[-1] == f"node 1 {end}"
    assert "killing" not in "".join(of_node(1, cut_off(ended, 1).new_lines()))
    assert "SIGKILL" not in "".join(of_node(1, cut_off(killed, 1).new_lines()))


@pytest.mark.parametrize("spares", [0, 1])
def test_ranks_get_grace_period_if_node_0_has_ended(spares: int) -> None:
    """No other attempt can run; a lease, where there is one, still ends the grace period."""
    job = Job(nodes=2, workers=2, spares=spares)

    assert of_node(1, job.loses_node(0).settles().new_lines()) == [
        "node 1 prints: node 0 (n0) is gone: stopping 2 workers on this node",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    assert (
        job.time_passes(25).dies(2, 3).settles().new_lines()[-1]
        == "node 1 ends with 5: node 0 is gone"
    )


def test_lease_ends_grace_period() -> None:
    """Node 0 does not renew it any more, and is the reason."""
    job = outliving().loses_node(0).settles()
    job.new_lines()

    assert of_node(1, job.lease_expires(1).settles().new_lines()) == [
        "node 1 prints: the lease of this node has expired, and 2 workers killed",
        "node 1 kills what its ranks have left",
        "node 1 ends with 5: node 0 is gone",
    ]


def test_ranks_get_grace_period_in_job_of_fixed_nodes() -> None:
    job = Job(nodes=2, workers=2)

    assert of_node(1, job.is_cut_off(1).new_lines()) == [
        "node 1 prints: node 0 (n0) has been silent for 17 s: stopping 2 workers on this node",
        "node 1 sends SIGTERM to ranks 2-3",
    ]


@pytest.mark.parametrize(
    ("lost", "end"),
    [
        (Job.is_cut_off, "ends with 5: node 0 has been silent for 17 s"),
        (Job.is_declared_lost, "joins again"),
    ],
    ids=["silent", "given up"],
)
def test_node_is_cut_off_after_report(lost: Callable[[Job, int], Job], end: str) -> None:
    """No worker is left to kill, so it ends or joins again at once."""
    job = outliving()
    job.exits(2, 3, code=1).settles().new_lines()

    assert of_node(1, lost(job, 1).new_lines())[-1] == f"node 1 {end}"


def test_node_declared_lost_after_signal_ends() -> None:
    """Its user does not want it to join again."""
    job = outliving()
    job.signalled(signal.SIGTERM, node=1).is_declared_lost(1)

    assert of_node(1, job.dies(2, 3, by=signal.SIGTERM).settles().new_lines())[-1] == (
        "node 1 ends with 143: it got SIGTERM"
    )


# The lease of a node's ranks is over, and the node is back before node 0 gives it up.


LEASE_OVER = "was stopped, or cut off, for too long: its workers' lease had expired"


def test_expired_lease_is_not_a_failure() -> None:
    """The same nodes continue, no restart or loss is counted, and the spare keeps waiting."""
    job = outliving()

    job.lease_expires(1).settles()
    assert job.new_lines()[:2] == [
        (
            "node 1 prints: this node was stopped, or cut off from node 0, for too long:"
            " its lease has expired, and 2 workers killed"
        ),
        "node 1 kills what its ranks have left",
    ]
    job.dies(0, 1, by=signal.SIGTERM).settles()
    assert job.new_lines()[-2:] == [
        "node 0 starts ranks 0-1, attempt 1",
        "node 1 starts ranks 2-3, attempt 1",
    ]
    assert job.restarted() == f"node 1 {LEASE_OVER}; restarts: 0, lost nodes: 0"


def test_failure_before_expired_lease_is_cause() -> None:
    """The node was stopped while all nodes were stopping."""
    job = Job(nodes=2, spares=1, restarts=1)

    job.exits(0, code=7).settles().lease_expires(1).settles()

    assert job.restarted() == "rank 0 failed; restarts: 1, lost nodes: 0"


def test_failures_of_peers_follow_from_expired_lease() -> None:
    job = Job(nodes=2, spares=1, restarts=1)
    broken = "RuntimeError: Connection closed by peer"

    job.lease_expires(1).exits(0, code=1, last=broken).settles()

    assert job.restarted() == f"node 1 {LEASE_OVER}; restarts: 0, lost nodes: 0"


def test_lost_node_is_cause_before_expired_lease() -> None:
    job = Job(nodes=3, spares=1)

    job.lease_expires(1).loses_node(2).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.restarted().startswith("node 2 is gone; restarts: 0, lost nodes: 1")


def test_suspension_outlives_expired_lease() -> None:
    """The next attempt is asked to save."""
    job = Job(nodes=2, spares=1)
    job.calls_requested(0, 1).asked_to_suspend("SIGUSR1").settles().lease_expires(1).settles()
    job.dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-4:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 holds its ranks",
        "node 1 starts rank 1, attempt 1",
        "node 1 holds its ranks",
    ]


def test_node_0_was_stopped_for_too_long() -> None:
    """The others have declared it lost and have ended; it is the reason, not the first of them."""
    job = Job(nodes=3, least=1)

    job.node_0_was_stopped(20.0).loses_node(1).loses_node(2).settles().dies(0, by=signal.SIGTERM)

    assert job.settles().new_lines()[-1] == "node 0 ends with 5: node 0 was stopped for 20 s"


def test_all_nodes_were_stopped() -> None:
    """No node has declared another one lost; a loss since then counts."""
    job = Job(nodes=2, spares=1)

    job.node_0_was_stopped(3600.0).time_passes(2).loses_node(1).settles().dies(0, by=signal.SIGTERM)

    assert job.settles().new_lines()[-1] == "node 2 starts rank 1, attempt 1"


def test_orders_of_another_attempt_are_ignored() -> None:
    """Those of the current attempt are obeyed."""
    job = Job(nodes=2)

    assert job.gets_orders(1).settles().new_lines() == []
    job.asked_to_suspend("clusterrun suspend").settles().new_lines()
    assert job.gets_orders(1).settles().new_lines() == []
    assert job.gets_orders(0).new_lines() == [
        "node 0 holds its ranks",
        "node 0 lets its ranks go on, to save at step 4",
        "node 0 lets its ranks go on",
        "node 0 prints: rank 9 on n9 failed: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).gets_orders(0).new_lines() == [
        "node 0 kills what its ranks have left",
    ]


def test_node_declared_lost_joins_again_after_losing_node_0() -> None:
    """Node 0 has declared it lost, not the reverse."""
    job = outliving().is_declared_lost(1).is_cut_off(1)

    assert of_node(1, job.dies(2, 3).settles().new_lines())[-1] == "node 1 joins again"


def test_verdict_counts_though_node_0_is_lost_later() -> None:
    """It came first, and it is what the other nodes report."""
    job = Job(nodes=2)

    job.exits(0, code=7).settles()
    job.dies(1, by=signal.SIGTERM).settles().is_cut_off(1).settles()

    assert "node 1 ends with 7: rank 0 failed" in job.new_lines()
