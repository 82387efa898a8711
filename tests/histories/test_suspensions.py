"""All ranks save at one step and the job ends; or it goes on, or ends without."""

import signal

from tests.histories.told_job import Job

AGREED = (
    "node 0 prints: SIGUSR1 on n1: all ranks save at step 6 and end (--suspend-grace 30 s)",
    "node 0 lets its ranks go on, to save at step 6",
    "node 1 lets its ranks go on, to save at step 6",
)


def saving(nodes: int = 2) -> Job:
    """Return a job whose ranks are to save at step 6, as node 1 has asked."""
    job = Job(nodes=nodes)
    job.asks(*range(nodes)).settles().asked_to_suspend("SIGUSR1", node=1).settles()
    for node in range(nodes):
        job.is_held(6, node=node)
    job.settles().saw()
    return job


def test_the_step_after_the_furthest_rank_is_agreed_on() -> None:
    """All are held first; the answer follows the last report, and node 0 prints it."""
    job = Job(nodes=2)
    job.asks(0, 1).settles()

    assert job.asked_to_suspend("SIGUSR1", node=1).settles().saw() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert job.is_held(4).settles().saw() == []
    assert job.is_held(6, node=1).settles().saw() == [*AGREED]


def test_a_job_is_suspended_once_all_ranks_have_saved() -> None:
    """All nodes end with the exit code that a scheduler knows."""
    job = saving()

    assert job.saves(6, 0).settles().saw() == []
    assert job.saves(6, 1).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
    ]
    assert job.exits(0, 1).settles().saw()[-2:] == [
        "node 0 ends with 75: all saved at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 75: all saved at step 6, as SIGUSR1 on n1 asked",
    ]


def test_sigterm_asks_once_a_rank_of_the_job_has_asked() -> None:
    """Before that, it ends the job."""
    asked, unasked = Job(nodes=2), Job(nodes=2)
    asked.asks(0).settles()

    assert asked.signalled(signal.SIGTERM, node=1).settles().saw() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert "node 1 sends SIGTERM to rank 1" in unasked.signalled(signal.SIGTERM, node=1).saw()


def test_a_request_waits_for_the_first_calls() -> None:
    """All save at their first one."""
    job = Job(nodes=2)
    job.asked_to_suspend("clusterrun suspend").settles()

    job.asks(0).is_held(0).is_held(0, node=1).settles()

    assert job.saw()[-3:] == [
        (
            "node 0 prints: clusterrun suspend on n0: all ranks save at their first call of"
            " suspend.requested() and end (--suspend-grace 30 s)"
        ),
        "node 0 lets its ranks go on, to save at step 0",
        "node 1 lets its ranks go on, to save at step 0",
    ]


def test_ranks_that_do_not_save_are_named_and_ended() -> None:
    """Named after 5 s, ended after the grace period; the exit code says that not all is saved."""
    job = saving()
    job.saves(6, 0).settles()

    assert job.passes(5).settles().saw() == [
        (
            "node 0 prints: SIGUSR1 on n1: waits for rank 1 to save; clusterrun suspend, typed again,"
            " ends the job without waiting"
        ),
    ]
    assert job.passes(25).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        "node 1 prints: not all ranks saved within 30 s (SIGUSR1 on n1): stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(0, 1, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
    ]


def test_a_rank_that_ends_well_cancels_the_suspension() -> None:
    """So will the others soon; a later request is refused in the same way."""
    job = saving()

    assert job.exits(1).settles().saw()[-3:] == [
        "node 0 prints: SIGUSR1 on n1: not suspended, since rank 1 has exited already",
        "node 0 lets its ranks go on",
        "node 1 lets its ranks go on",
    ]
    assert job.asked_to_suspend("clusterrun suspend").settles().saw() == [
        "node 0 prints: clusterrun suspend on n0: not suspended, since workers have exited already",
    ]


def test_a_failure_ends_the_agreement() -> None:
    """It is the cause; the request holds for the next attempt."""
    job = Job(nodes=2, restarts=1)
    job.asks(0, 1).settles().asked_to_suspend("SIGUSR1").settles().saw()

    assert job.exits(1, code=3).settles().saw()[-2:] == [
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().saw()[1:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 holds its ranks",
        "node 1 starts rank 1, attempt 1",
        "node 1 holds its ranks",
    ]


def test_a_lost_node_ends_the_agreement() -> None:
    """It may not have saved."""
    job = saving()

    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == "node 0 ends with 5: node 1 is gone"
