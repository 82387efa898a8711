"""All nodes have one stop, one cause and one end; the next attempt begins once all have stopped."""

import signal

from tests.histories.job_history import Job


def test_job_succeeds_when_every_node_has_reported() -> None:
    """Early nodes wait for late ones, and stop none."""
    job = Job(nodes=3)

    assert job.exits(0, 2).settles().new_lines() == [
        "node 0 waits for what its ranks have left",
        "node 2 waits for what its ranks have left",
    ]
    assert job.exits(1).settles().new_lines() == [
        "node 1 waits for what its ranks have left",
        "node 0 ends with 0: all ranks have succeeded",
        "node 1 ends with 0: all ranks have succeeded",
        "node 2 ends with 0: all ranks have succeeded",
    ]


def test_done_node_prints_every_minute_which_still_run() -> None:
    """Nodes that run print their own lines."""
    job = Job(nodes=3)
    job.exits(1).settles().new_lines()

    assert job.time_passes(61).settles().new_lines() == [
        "node 0 prints: rank 1 exited with code 0 61 s ago; ranks 0, 2 still run",
        "node 1 prints: all workers of this node have exited; still running: n0, n2",
    ]
    job.exits(2).settles().new_lines()
    assert job.time_passes(61).settles().new_lines() == [
        "node 1 prints: all workers of this node have exited; still running: n0",
        "node 2 prints: all workers of this node have exited; still running: n0",
    ]


def test_first_failure_stops_every_node() -> None:
    """Once: later failures stop no other node, and all report the first."""
    job = Job(nodes=3)

    assert job.exits(1, code=7).settles().new_lines()[1:] == [
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
        "node 2 prints: rank 1 on n1 failed: stopping 1 worker on this node",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.exits(2, code=1).settles().new_lines() == ["node 2 kills what its ranks have left"]
    assert job.dies(0, by=signal.SIGTERM).settles().new_lines()[1:] == [
        "node 0 ends with 7: rank 1 failed",
        "node 1 ends with 7: rank 1 failed",
        "node 2 ends with 7: rank 1 failed",
    ]


def test_earliest_failure_is_cause() -> None:
    """Even if it was on another node, and neither knew of the other."""
    job = Job(nodes=2, workers=2)

    job.exits(3, code=7).time_passes(0.5).exits(0, code=1).settles()

    assert job.dies(1, 2, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 0 ends with 7: rank 3 failed",
        "node 1 ends with 7: rank 3 failed",
    ]


def test_failure_before_signal_is_cause() -> None:
    """The scheduler's SIGTERM comes after a rank has failed."""
    job = Job(nodes=2)

    job.exits(0, code=3).settles().time_passes(0.5).signalled(signal.SIGTERM, node=1).settles()

    assert job.dies(1, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 0 ends with 3: rank 0 failed",
        "node 1 ends with 3: rank 0 failed",
    ]


def test_lost_node_stops_others_and_is_cause() -> None:
    """The failures of its peers are consequences, even one that is known before the loss."""
    after, before = Job(nodes=3), Job(nodes=3)
    reset = "RuntimeError: connection reset by peer"

    assert after.loses_node(1).settles().new_lines() == [
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
        "node 2 prints: node 1 (n1) is gone: stopping 1 worker on this node",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert after.exits(0, 2, code=1, last=reset).settles().new_lines()[-2:] == [
        "node 0 ends with 5: node 1 is gone",
        "node 2 ends with 5: node 1 is gone",
    ]
    before.exits(0, code=1, last=reset).settles().loses_node(1).settles()
    assert before.exits(2, code=1).settles().new_lines()[-2:] == [
        "node 0 ends with 5: node 1 is gone",
        "node 2 ends with 5: node 1 is gone",
    ]


def test_lost_node_is_not_waited_for() -> None:
    """It was the last one without a report."""
    job = Job(nodes=2)
    job.dies(0, by=signal.SIGTERM).settles().new_lines()

    assert job.loses_node(1).settles().new_lines() == ["node 0 ends with 5: node 1 is gone"]


def test_signal_is_cause_of_nodes_lost_after_it() -> None:
    """Scancel sends SIGKILL to nodes that take too long."""
    job = Job(nodes=2)

    job.signalled(signal.SIGTERM).settles().loses_node(1).settles()

    job.dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-1] == "node 0 ends with 143: it got SIGTERM"


def test_agent_that_exits_after_report_is_not_lost() -> None:
    """It has nothing more to say."""
    job = Job(nodes=2)

    job.exits(1).settles().loses_node(1).settles()

    assert job.exits(0).settles().new_lines()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_failure_well_before_loss_is_cause() -> None:
    """Another node is lost while all stop, or the one that has failed."""
    other, own = Job(nodes=3), Job(nodes=2)

    other.exits(2, code=3).time_passes(5).settles().loses_node(1).settles()
    own.exits(1, code=3).delivers_all().time_passes(0.1).loses_node(1).settles()

    other.dies(0, by=signal.SIGTERM).settles()
    own.exits(0, code=1, last="RuntimeError: connection reset by peer").settles()
    assert other.new_lines()[-2:] == [
        "node 0 ends with 3: rank 2 failed",
        "node 2 ends with 3: rank 2 failed",
    ]
    assert own.new_lines()[-1] == "node 0 ends with 3: rank 1 failed"


def test_frozen_node_gets_verdict_when_it_continues() -> None:
    """It stops its ranks, and reports the same as the others."""
    job = Job(nodes=2)

    assert job.goes_silent(1).settles().new_lines() == [
        "node 0 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().new_lines()[-1] == (
        "node 0 ends with 5: node 1 has been silent for 18 s"
    )
    assert job.continues(1).settles().new_lines() == [
        "node 1 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(1, by=signal.SIGTERM).settles().new_lines()[-1] == (
        "node 1 ends with 5: node 1 has been silent for 18 s"
    )


def test_next_attempt_begins_when_all_have_stopped() -> None:
    """On all nodes, with the same ranks."""
    job = Job(nodes=3, restarts=1)
    job.exits(1, code=7).settles().new_lines()

    assert job.dies(0, by=signal.SIGTERM).settles().new_lines() == [
        "node 0 kills what its ranks have left",
    ]
    assert job.dies(2, by=signal.SIGTERM).settles().new_lines() == [
        "node 2 kills what its ranks have left",
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
        "node 2 starts rank 2, attempt 1",
    ]


def test_restarts_are_counted_for_the_job() -> None:
    """For failures of any node; nothing of an earlier attempt is kept."""
    job = Job(nodes=2, restarts=2)

    for failing, other in ((1, 0), (0, 1)):
        job.exits(failing, code=7).settles().dies(other, by=signal.SIGTERM).settles()
    assert job.new_lines()[-2:] == [
        "node 0 starts rank 0, attempt 2",
        "node 1 starts rank 1, attempt 2",
    ]
    job.exits(1, code=3).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.new_lines()[-2:] == [
        "node 0 ends with 3: rank 1 failed",
        "node 1 ends with 3: rank 1 failed",
    ]


def test_signal_while_stopping_prevents_next_attempt() -> None:
    """It is for the whole job."""
    job = Job(nodes=2, restarts=3)
    job.exits(1, code=7).settles().new_lines()

    assert job.signalled(signal.SIGTERM, node=1).settles().new_lines() == [
        (
            "node 1 prints: SIGTERM: the other nodes stop their workers (a second SIGTERM does not wait for them); exit code 143"
        ),
        "node 1 prints: SIGTERM: no restart; exit code 143",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_node_that_exits_after_report_prevents_restart() -> None:
    """Too few nodes are left; the cause of this attempt stays the cause."""
    job = Job(nodes=3, restarts=1)

    job.exits(1, code=7).settles().dies(2, by=signal.SIGTERM).settles().loses_node(2).settles()

    assert job.dies(0, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 0 ends with 7: rank 1 failed (no restart: node 2 (n2) is gone)",
        "node 1 ends with 7: rank 1 failed (no restart: node 2 (n2) is gone)",
    ]


def test_lost_node_does_not_restart_job_of_fixed_nodes() -> None:
    """A world of fixed size can't do without it."""
    job = Job(nodes=2, restarts=5)

    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-1] == "node 0 ends with 5: node 1 is gone"


def test_lost_node_0_ends_each_node() -> None:
    """No restart follows without it. A signal on this node stays the cause here."""
    job, signalled = Job(nodes=3, restarts=3), Job(nodes=2)

    assert job.loses_node(0).settles().new_lines() == [
        "node 1 prints: node 0 (n0) is gone: stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
        "node 2 prints: node 0 (n0) is gone: stopping 1 worker on this node",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.dies(1, 2, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 1 ends with 5: node 0 is gone",
        "node 2 ends with 5: node 0 is gone",
    ]
    signalled.signalled(signal.SIGTERM).settles().loses_node(0).settles()
    signalled.dies(1, by=signal.SIGTERM).settles()
    assert signalled.new_lines()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_done_node_does_not_wait_for_lost_node_0() -> None:
    """Its ranks have succeeded, but it cannot know how the others ended."""
    job = Job(nodes=2)
    job.exits(1).settles().new_lines()

    assert job.loses_node(0).settles().new_lines() == ["node 1 ends with 5: node 0 is gone"]
