"""Ranks that have not begun their programs yet, and what is printed about starts."""

import signal

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"


def test_a_rank_may_end_before_others_have_begun() -> None:
    """It succeeds, and the others go on; if it fails, they are asked to end, too."""
    good, failed = Job(workers=2, starting=[1]), Job(workers=2, starting=[1])

    assert good.exits(0).starts(1).saw() == []
    assert good.exits(1).saw() == ["node 0 waits for what its ranks have left"]
    assert failed.exits(0, code=1).saw() == ["node 0 sends SIGTERM to rank 1"]
    assert failed.starts(1).saw() == []
    assert failed.dies(1, by=signal.SIGTERM).saw() == [CLEANS]


def test_a_signal_may_come_before_any_rank_has_begun() -> None:
    """It ends the job as any other."""
    job = Job(workers=2, starting=[0, 1], grace=0.5)

    assert job.signalled(signal.SIGTERM).saw() == [
        (
            "node 0 prints: SIGTERM: stopping 2 workers (grace 0.5 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to ranks 0-1",
    ]


def test_what_differs_from_the_plan_is_printed() -> None:
    """A binding, and what the fork server could not do."""
    job = Job(starting=[0])

    job.fork_server_warns("a warning", "PR_SET_PDEATHSIG (Operation not permitted)", "cgroups (no)")
    job.starts(0, remark="asked for CPUs [0, 9], got [0]")

    assert job.saw() == [
        "node 0 prints: the workers' interpreter printed when it started: a warning",
        (
            "node 0 prints: the kernel refuses PR_SET_PDEATHSIG (Operation not permitted) and cgroups"
            " (no): if clusterrun is killed, processes of the job may live on"
        ),
        "node 0 prints: local rank 0: asked for CPUs [0, 9], got [0]",
    ]
    assert job.fork_server_warns().saw() == []
