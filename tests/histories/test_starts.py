"""Ranks whose programs have not started yet, and notices about starts."""

import signal

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"


def test_rank_ends_before_others_have_started() -> None:
    """It succeeds, and the others continue; if it fails they are stopped as well."""
    good, failed = Job(workers=2, starting=[1]), Job(workers=2, starting=[1])

    assert good.exits(0).starts(1).new_lines() == []
    assert good.exits(1).new_lines() == ["node 0 waits for what its ranks have left"]
    assert failed.exits(0, code=1).new_lines() == ["node 0 sends SIGTERM to rank 1"]
    assert failed.starts(1).new_lines() == []
    assert failed.dies(1, by=signal.SIGTERM).new_lines() == [CLEANS]


def test_signal_before_any_rank_has_started() -> None:
    """It ends the job like any other."""
    job = Job(workers=2, starting=[0, 1], grace=0.5)

    assert job.signalled(signal.SIGTERM).new_lines() == [
        (
            "node 0 prints: SIGTERM: stopping 2 workers (grace 0.5 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to ranks 0-1",
    ]


def test_difference_from_plan_is_printed() -> None:
    """A binding, and what the fork server could not do."""
    job = Job(starting=[0])

    job.fork_server_warns("a warning", "PR_SET_PDEATHSIG (Operation not permitted)", "cgroups (no)")
    job.starts(0, warning="asked for CPUs [0, 9], got [0]")

    assert job.new_lines() == [
        "node 0 prints: the workers' interpreter printed when it started: a warning",
        (
            "node 0 prints: the kernel refuses PR_SET_PDEATHSIG (Operation not permitted) and"
            " cgroups (no): if clusterrun is killed, processes of the job may keep running"
        ),
        "node 0 prints: local rank 0: asked for CPUs [0, 9], got [0]",
    ]
    assert job.fork_server_warns().new_lines() == []
