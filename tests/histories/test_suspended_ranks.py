"""Ranks of a node that are held or have saved when something else ends them."""

import signal

from tests.histories.job_history import Job

HOLD = ["node 0 holds its ranks", "node 1 holds its ranks"]
TERM = signal.SIGTERM


def saving() -> Job:
    """Return a job of two nodes whose ranks are to save at step 4; rank 3 has never asked."""
    job = (
        Job(nodes=2, workers=2).calls_requested(0, 1, 2).settles().signalled(TERM, node=1).settles()
    )
    assert job.new_lines() == HOLD
    job.holds_ranks(4).holds_ranks(4, node=1).settles().new_lines()
    return job


def test_saved_ranks_exit_by_themselves() -> None:
    """Only the other ranks of the node get SIGTERM; all are killed after a grace period."""
    suspended, too_late = saving(), saving()
    suspended.saves(4, 0, 1, 2).settles().time_passes(5).settles()
    too_late.saves(4, 0, 2).settles().time_passes(30).settles()

    assert [line for line in suspended.new_lines() if "SIGTERM to" in line] == [
        "node 1 sends SIGTERM to rank 3",
    ]
    suspended.dies(3, by=TERM).exits(0, 1).settles().new_lines()
    assert suspended.time_passes(25).settles().new_lines() == [
        "node 1 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 1 sends SIGKILL to rank 2 and all they started",
    ]
    suspended.dies(2).settles()
    assert suspended.report(1)[0].endswith("as it was asked to end")
    assert [line for line in too_late.new_lines() if "SIGTERM to" in line] == [
        "node 0 sends SIGTERM to rank 1",
        "node 1 sends SIGTERM to rank 3",
    ]


def test_failure_releases_ranks_of_its_node() -> None:
    """They get SIGTERM, even if they have saved; what they do then is late."""
    job = saving().saves(4, 1, 2).settles()

    assert job.exits(0, code=3).new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 0 sends SIGTERM to rank 1",
    ]
    assert job.settles().new_lines() == [
        "node 1 lets ranks that have saved end",
        "node 1 prints: rank 0 on n0 failed: stopping 2 workers on this node",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    job.calls_requested(3).saves(4, 3).holds_ranks(9).holds_ranks(9, node=1)
    assert job.settles().new_lines() == []


def test_stopping_ranks_are_not_held() -> None:
    """The request crosses a signal to another node."""
    job = Job(nodes=2).asked_to_suspend("clusterrun suspend").signalled(signal.SIGINT, node=1)

    lines = job.settles().new_lines()

    assert HOLD[0] in lines
    assert HOLD[1] not in lines


def test_next_attempt_forgets_saved_ranks() -> None:
    """All ranks that have not saved in it are stopped."""
    job = Job(nodes=2, restarts=1).calls_requested(0, 1).asked_to_suspend("SIGUSR1").settles()
    job.holds_ranks(4).holds_ranks(4, node=1).settles().saves(4, 0)
    job.exits(1, code=1).settles().exits(0).settles()
    job.calls_requested(0, 1).holds_ranks(0).holds_ranks(0, node=1).settles().new_lines()

    lines = job.time_passes(30).settles().new_lines()

    assert [line for line in lines if "SIGTERM to" in line] == [
        "node 0 sends SIGTERM to rank 0",
        "node 1 sends SIGTERM to rank 1",
    ]
