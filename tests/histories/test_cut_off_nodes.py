"""A node that has lost node 0, or that the others have lost: its ranks must not go on alone."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.told_job import Job

LOSSES: list[tuple[Callable[[Job], Job], str]] = [
    (lambda job: job.loses_node(0).settles(), "node 0 (n0) is gone"),
    (lambda job: job.turns_away(1), "node 0 (n0) has been silent for 15 s"),
    (lambda job: job.is_given_up(1), "the other nodes have lost this one"),
]


def outliving() -> Job:
    """Return a job of two nodes that may go on without one of them."""
    return Job(nodes=2, workers=2, spares=1)


@pytest.mark.parametrize(("cut_off", "why"), LOSSES)
def test_ranks_are_killed_if_the_others_may_go_on(cut_off: Callable[[Job], Job], why: str) -> None:
    """In a grace period they would save what the next attempt saves, too; also if they are stopping."""
    kills = [
        f"node 1 prints: {why}: killing 2 workers here, since the other nodes may go on",
        "node 1 sends SIGKILL to ranks 2-3 and all they started",
    ]
    running, stopping, ended, killed = outliving(), outliving(), outliving(), outliving()
    stopping.exits(0, code=3).settles().saw()
    ended.exits(2, 3).saw()
    killed.exits(0, code=3).settles().passes(25).saw()

    assert cut_off(running).saw()[:2] == kills
    assert cut_off(stopping).saw()[:2] == kills
    assert "killing" not in "".join(cut_off(ended).saw())
    assert "SIGKILL" not in "".join(cut_off(killed).saw()[:2])


@pytest.mark.parametrize(("cut_off", "why"), [LOSSES[0], LOSSES[2]])
def test_ranks_are_stopped_in_order_if_the_job_ends_with_its_nodes(
    cut_off: Callable[[Job], Job], why: str
) -> None:
    """With a grace period."""
    job = Job(nodes=2, workers=2)

    assert cut_off(job).saw() == [
        f"node 1 prints: {why}: stopping 2 workers here",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    assert job.passes(25).dies(2, 3).settles().saw()[-1].startswith("node 1 ends with 5: node ")


def test_a_node_that_is_done_waits_for_a_successor() -> None:
    """As it did for node 0; if there is none, the job ends, and says so."""
    job = outliving()
    job.exits(2, 3).settles().loses_node(0).saw()

    assert job.turns_away(1).settles().saw() == ["node 2 is disconnected"]
    assert job.finds_no_successor(1, "no node has taken its place").settles().saw() == [
        "node 1 ends with 5: node 0 is gone (no restart: no node has taken its place)",
    ]


def test_orders_of_another_attempt_are_none() -> None:
    """Those of this attempt are followed."""
    job = Job(nodes=2)

    assert job.gets_orders(1).settles().saw() == []
    job.asked_to_suspend("clusterrun suspend").settles().saw()
    assert job.gets_orders(1).settles().saw() == []
    assert job.gets_orders(0).saw() == [
        "node 0 holds its ranks",
        "node 0 lets its ranks go on, to save at step 4",
        "node 0 lets its ranks go on",
        "node 0 prints: rank 9 on n9 failed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).gets_orders(0).saw() == [
        "node 0 kills what its ranks have left",
    ]


def test_the_verdict_is_the_answer_though_node_0_is_lost_afterwards() -> None:
    """It came first, and says what the other nodes report."""
    job = Job(nodes=2)

    job.is_given_up(1).loses_link(1).dies(1, by=signal.SIGTERM).settles()

    assert "node 1 ends with 5: node 1 has been silent for 15 s" in job.saw()
