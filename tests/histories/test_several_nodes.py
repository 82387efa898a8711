"""One stop for all nodes, one cause, one end; and another attempt only once all have stopped."""

import signal

from tests.histories.job_history import Job


def test_a_job_succeeds_when_every_node_has_reported_it() -> None:
    """Early nodes wait for late ones, and stop none."""
    job = Job(nodes=3)

    assert job.exits(0, 2).settles().saw() == [
        "node 0 waits for what its ranks have left",
        "node 2 waits for what its ranks have left",
    ]
    assert job.exits(1).settles().saw() == [
        "node 1 waits for what its ranks have left",
        "node 0 ends with 0: all ranks have succeeded",
        "node 1 ends with 0: all ranks have succeeded",
        "node 2 ends with 0: all ranks have succeeded",
    ]


def test_a_node_that_is_done_says_each_minute_which_still_run() -> None:
    """Nodes that still run print their own lines."""
    job = Job(nodes=3)
    job.exits(1).settles().saw()

    assert job.passes(61).settles().saw() == [
        "node 0 prints: rank 1 exited with code 0 61 s ago; ranks 0, 2 still run",
        "node 1 prints: all workers of this node have exited; still running: n0, n2",
    ]
    job.exits(2).settles().saw()
    assert job.passes(61).settles().saw() == [
        "node 1 prints: all workers of this node have exited; still running: n0",
        "node 2 prints: all workers of this node have exited; still running: n0",
    ]


def test_the_first_failure_stops_every_node() -> None:
    """Once: later failures stop no other node, and all report the first."""
    job = Job(nodes=3)

    assert job.exits(1, code=7).settles().saw()[1:] == [
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
        "node 2 prints: rank 1 on n1 failed: stopping 1 worker here",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.exits(2, code=1).settles().saw() == ["node 2 kills what its ranks have left"]
    assert job.dies(0, by=signal.SIGTERM).settles().saw()[1:] == [
        "node 0 ends with 7: rank 1 failed",
        "node 1 ends with 7: rank 1 failed",
        "node 2 ends with 7: rank 1 failed",
    ]


def test_the_earliest_failure_is_the_cause() -> None:
    """Also if it was on another node, and neither had heard of the other."""
    job = Job(nodes=2, workers=2)

    job.exits(3, code=7).passes(0.5).exits(0, code=1).settles()

    assert job.dies(1, 2, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 7: rank 3 failed",
        "node 1 ends with 7: rank 3 failed",
    ]


def test_a_failure_before_a_signal_is_the_cause() -> None:
    """The scheduler's SIGTERM comes after a rank has failed."""
    job = Job(nodes=2)

    job.exits(0, code=3).settles().passes(0.5).signalled(signal.SIGTERM, node=1).settles()

    assert job.dies(1, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 3: rank 0 failed",
        "node 1 ends with 3: rank 0 failed",
    ]


def test_a_lost_node_stops_the_others_and_is_the_cause() -> None:
    """The failures of its peers are consequences, also one that is known before the loss."""
    after, before = Job(nodes=3), Job(nodes=3)
    reset = "RuntimeError: connection reset by peer"

    assert after.loses_node(1).settles().saw() == [
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
        "node 2 prints: node 1 (n1) is gone: stopping 1 worker here",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert after.exits(0, 2, code=1, last=reset).settles().saw()[-2:] == [
        "node 0 ends with 5: node 1 is gone",
        "node 2 ends with 5: node 1 is gone",
    ]
    before.exits(0, code=1, last=reset).settles().loses_node(1).settles()
    assert before.exits(2, code=1).settles().saw()[-2:] == [
        "node 0 ends with 5: node 1 is gone",
        "node 2 ends with 5: node 1 is gone",
    ]


def test_no_node_waits_for_a_lost_one() -> None:
    """It was the last one without a report."""
    job = Job(nodes=2)
    job.dies(0, by=signal.SIGTERM).settles().saw()

    assert job.loses_node(1).settles().saw() == ["node 0 ends with 5: node 1 is gone"]


def test_a_signal_is_the_cause_of_nodes_lost_after_it() -> None:
    """Scancel sends SIGKILL to nodes that take too long."""
    job = Job(nodes=2)

    job.signalled(signal.SIGTERM).settles().loses_node(1).settles()

    job.dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-1] == "node 0 ends with 143: it got SIGTERM"


def test_an_agent_that_goes_after_its_report_is_not_lost() -> None:
    """It has nothing more to say."""
    job = Job(nodes=2)

    job.exits(1).settles().loses_node(1).settles()

    assert job.exits(0).settles().saw()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_a_failure_well_before_a_loss_is_the_cause() -> None:
    """Another node is lost while all of them stop; or the one that has failed."""
    other, own = Job(nodes=3), Job(nodes=2)

    other.exits(2, code=3).passes(5).settles().loses_node(1).settles()
    own.exits(1, code=3).hears().passes(0.1).loses_node(1).settles()

    other.dies(0, by=signal.SIGTERM).settles()
    own.exits(0, code=1, last="RuntimeError: connection reset by peer").settles()
    assert other.saw()[-2:] == [
        "node 0 ends with 3: rank 2 failed",
        "node 2 ends with 3: rank 2 failed",
    ]
    assert own.saw()[-1] == "node 0 ends with 3: rank 1 failed"


def test_a_frozen_node_learns_that_it_was_lost() -> None:
    """It stops its ranks when it goes on, and reports what the others have reported."""
    job = Job(nodes=2)

    assert job.misses(1).settles().saw() == [
        "node 0 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().saw()[-1] == (
        "node 0 ends with 5: node 1 has been silent for 18 s"
    )
    assert job.thaws(1).settles().saw() == [
        "node 1 prints: node 1 (n1) has been silent for 18 s: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(1, by=signal.SIGTERM).settles().saw()[-1] == (
        "node 1 ends with 5: node 1 has been silent for 18 s"
    )


def test_the_next_attempt_begins_when_all_have_stopped() -> None:
    """On all nodes, with the same ranks."""
    job = Job(nodes=3, restarts=1)
    job.exits(1, code=7).settles().saw()

    assert job.dies(0, by=signal.SIGTERM).settles().saw() == [
        "node 0 kills what its ranks have left",
    ]
    assert job.dies(2, by=signal.SIGTERM).settles().saw() == [
        "node 2 kills what its ranks have left",
        "node 0 starts rank 0, attempt 1",
        "node 1 starts rank 1, attempt 1",
        "node 2 starts rank 2, attempt 1",
    ]


def test_restarts_are_counted_once_for_the_job() -> None:
    """For failures of any node; nothing of an attempt before is kept."""
    job = Job(nodes=2, restarts=2)

    for failing, other in ((1, 0), (0, 1)):
        job.exits(failing, code=7).settles().dies(other, by=signal.SIGTERM).settles()
    assert job.saw()[-2:] == [
        "node 0 starts rank 0, attempt 2",
        "node 1 starts rank 1, attempt 2",
    ]
    job.exits(1, code=3).settles().dies(0, by=signal.SIGTERM).settles()
    assert job.saw()[-2:] == [
        "node 0 ends with 3: rank 1 failed",
        "node 1 ends with 3: rank 1 failed",
    ]


def test_a_signal_while_all_stop_prevents_the_next_attempt() -> None:
    """It is for the job."""
    job = Job(nodes=2, restarts=3)
    job.exits(1, code=7).settles().saw()

    assert job.signalled(signal.SIGTERM, node=1).settles().saw() == [
        (
            "node 1 prints: SIGTERM: the other nodes stop their workers (a second SIGTERM does not wait for them); exit code 143"
        ),
        "node 1 prints: SIGTERM: no restart; exit code 143",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]


def test_a_node_that_goes_after_its_report_prevents_a_restart() -> None:
    """Too few are left; the cause of this attempt stays the cause."""
    job = Job(nodes=3, restarts=1)

    job.exits(1, code=7).settles().dies(2, by=signal.SIGTERM).settles().loses_node(2).settles()

    assert job.dies(0, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 7: rank 1 failed (no restart: node 2 (n2) is gone)",
        "node 1 ends with 7: rank 1 failed (no restart: node 2 (n2) is gone)",
    ]


def test_a_lost_node_does_not_restart_the_job() -> None:
    """A world of fixed size can't do without it."""
    job = Job(nodes=2, restarts=5)

    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == "node 0 ends with 5: node 1 is gone"


def test_without_node_0_each_node_ends_by_itself() -> None:
    """No restart: nobody is left to order one. A signal there stays the cause here."""
    job, signalled = Job(nodes=3, restarts=3), Job(nodes=2)

    assert job.loses_node(0).settles().saw() == [
        "node 1 prints: node 0 (n0) is gone: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
        "node 2 prints: node 0 (n0) is gone: stopping 1 worker here",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.dies(1, 2, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 1 ends with 5: node 0 is gone",
        "node 2 ends with 5: node 0 is gone",
    ]
    signalled.signalled(signal.SIGTERM).settles().loses_node(0).settles()
    signalled.dies(1, by=signal.SIGTERM).settles()
    assert signalled.saw()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_a_node_that_has_reported_its_end_waits_for_no_lost_node_0() -> None:
    """Its ranks have ended well, and it can't know how the others did."""
    job = Job(nodes=2)
    job.exits(1).settles().saw()

    assert job.loses_node(0).settles().saw() == ["node 1 ends with 5: node 0 is gone"]
