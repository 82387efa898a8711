"""A job whose ranks print and whose main threads run, while NCCL waits for some of them."""

import pytest

from tests.histories.job_history import Job

ASKS = ["node 0 asks its ranks for their stacks", "node 1 asks its ranks for their stacks"]
BEHIND = "behind: rank 1 launched AllReduce 1203 times"


def told(seconds: str, then: str = "the job keeps running") -> str:
    return (
        "node 0 prints: ranks print, but some are behind in NCCL, and none has made progress for"
        f" {seconds} s: the Python stacks of all ranks follow; {then}"
    )


def trains(on_hang: str = "report") -> Job:
    """Return a job of two nodes that looks for hangs of 60 s: NCCL is asked every 20 s."""
    job = Job(nodes=2, on_hang=on_hang, finds_hangs=60.0)
    job.settles().saw()
    return job


def waits(job: Job, seconds: int) -> list[str]:
    """Return what is seen within this time."""
    for _ in range(seconds):
        job.passes(1).settles()
    return job.saw()


def test_the_same_ranks_are_behind_for_long() -> None:
    """The stacks are shown, then what NCCL says; once."""
    job = trains().nccl_says(BEHIND, behind=(1,), counts="a")

    assert waits(job, 79) == []
    assert waits(job, 3) == [told("60.1"), *ASKS]
    assert job.shows(0, 1, at="wait").settles().saw() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
        f"node 0 shows stacks: NCCL: | {BEHIND}",
    ]
    assert waits(job, 300) == []


@pytest.mark.parametrize("counts", ["b", ""])
def test_ranks_that_go_on(counts: str) -> None:
    """They are behind for a time, and others later."""
    job = trains().nccl_says(BEHIND, behind=(1,), counts="a")
    seen = waits(job, 70)
    job.nccl_says(BEHIND, behind=(1,) if counts else (), counts=counts)

    assert seen == []
    assert waits(job, 50) == []


def test_it_may_stop_all_ranks() -> None:
    """After NCCL was asked."""
    job = trains("stop").nccl_says(BEHIND, behind=(1,), counts="a")
    assert waits(job, 82)[0] == told("60.1", "then the job is stopped (--on-hang)")

    seen = job.shows(0, 1, at="wait").settles().saw()
    assert seen[1] == f"node 0 shows stacks: NCCL: | {BEHIND}"
    assert "node 0 sends SIGTERM to rank 0" in seen
    assert job.exits(0, 1).settles().saw()[-1] == (
        "node 1 ends with 7: no collective has moved for 60 s"
    )


def test_a_job_that_looks_for_no_hang() -> None:
    """NCCL is not asked."""
    job = Job(nodes=2).nccl_says(BEHIND, behind=(1,), counts="a").settles()

    assert waits(job, 300) == []


def test_ranks_that_are_silent_as_well() -> None:
    """That is what is said, once, with what NCCL says."""
    job = trains().nccl_says(BEHIND, behind=(1,), counts="a")
    waits(job, 60)

    job.stands_still(0, 1).settles()
    assert job.saw()[0].startswith("node 0 prints: no rank has printed or exited for 60 s: ")
    assert (
        job.shows(0, 1, at="wait").settles().saw()[-1] == f"node 0 shows stacks: NCCL: | {BEHIND}"
    )
    assert waits(job, 300) == []
