"""Ranks print and main threads run, while NCCL waits for some of the ranks."""

import signal

import pytest

from tests.histories.job_history import Job

ASKS = ["node 0 asks its ranks for their stacks", "node 1 asks its ranks for their stacks"]
BEHIND = "behind: rank 1 launched AllReduce 1203 times"


def hang_notice(seconds: str, then: str = "the job keeps running") -> str:
    return (
        "node 0 prints: ranks print, but some are behind in NCCL, and none has made progress for"
        f" {seconds} s: the Python stacks of all ranks follow; {then}"
    )


def trains(on_hang: str = "report") -> Job:
    """Return a job of two nodes that looks for hangs of 60 s: NCCL is asked every 20 s."""
    job = Job(nodes=2, on_hang=on_hang, finds_hangs=60.0)
    job.settles().new_lines()
    return job


def waits(job: Job, seconds: int) -> list[str]:
    """Return what is seen within this time."""
    for _ in range(seconds):
        job.time_passes(1).settles()
    return job.new_lines()


def test_same_ranks_are_behind_for_long() -> None:
    """The stacks are printed, then what NCCL reports, once."""
    job = trains().nccl_answers(BEHIND, behind=(1,), counts="a")

    assert waits(job, 79) == []
    assert waits(job, 3) == [hang_notice("60.1"), *ASKS]
    assert job.shows_stack(0, 1, at="wait").settles().new_lines() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
        f"node 0 shows stacks: NCCL: | {BEHIND}",
    ]
    assert waits(job, 300) == []


@pytest.mark.parametrize("counts", ["b", ""])
def test_ranks_behind_catch_up(counts: str) -> None:
    """They are behind for a time, and others later."""
    job = trains().nccl_answers(BEHIND, behind=(1,), counts="a")
    seen = waits(job, 70)
    job.nccl_answers(BEHIND, behind=(1,) if counts else (), counts=counts)

    assert seen == []
    assert waits(job, 50) == []


def test_on_hang_stop_stops_all_ranks() -> None:
    """After NCCL was queried."""
    job = trains("stop").nccl_answers(BEHIND, behind=(1,), counts="a")
    assert waits(job, 82)[0] == hang_notice("60.1", "then the job is stopped (--on-hang)")

    seen = job.shows_stack(0, 1, at="wait").settles().new_lines()
    assert seen[1] == f"node 0 shows stacks: NCCL: | {BEHIND}"
    assert "node 0 sends SIGTERM to rank 0" in seen
    assert job.exits(0, 1).settles().new_lines()[-1] == (
        "node 1 ends with 7: no collective has moved for 60 s"
    )


def asks_nccl() -> Job:
    """Return a hanging job whose stacks are shown; NCCL, which may take seconds, has not answered yet."""
    job = Job(nodes=2, on_hang="stop").settles()
    job.time_passes(60).is_idle(0, 1).settles().shows_stack(0, 1, at="wait").new_lines()
    while not any("shows stacks" in line for line in job.new_lines()):
        job.steps(0).steps(1)
    return job


def test_hang_that_is_over_when_nccl_answers_stops_no_rank() -> None:
    """A rank has printed, or a suspension has begun, which has its own time limit."""
    lasts, prints, suspends = asks_nccl(), asks_nccl(), asks_nccl()
    prints.moves(1).delivers_from(1)
    suspends.asked_to_suspend("SIGUSR1", node=1).delivers_from(1)

    assert "node 0 sends SIGTERM to rank 0" in lasts.settles().new_lines()
    assert prints.settles().new_lines() == []
    assert suspends.settles().new_lines() == ["node 0 holds its ranks", "node 1 holds its ranks"]


def test_hang_stops_ranks_although_a_user_asks_for_stacks_while_nccl_is_slow() -> None:
    job = Job(nodes=2, on_hang="stop").nccl_is_slow().settles()
    job.time_passes(60).is_idle(0, 1).settles().shows_stack(0, 1, at="wait").settles()

    job.signalled(signal.SIGQUIT).settles().shows_stack(0, 1, at="wait").settles().new_lines()

    assert "node 0 sends SIGTERM to rank 0" in job.nccl_answers(BEHIND).settles().new_lines()


def test_job_without_hang_timeout_does_not_query_nccl() -> None:
    """NCCL is not asked."""
    job = Job(nodes=2).nccl_answers(BEHIND, behind=(1,), counts="a").settles()

    assert waits(job, 300) == []


def test_silent_ranks_are_reported_once() -> None:
    """As silent, with what NCCL reports."""
    job = trains().nccl_answers(BEHIND, behind=(1,), counts="a")
    waits(job, 60)

    job.is_idle(0, 1).settles()
    assert job.new_lines()[0].startswith("node 0 prints: no rank has printed or exited for 60 s: ")
    assert (
        job.shows_stack(0, 1, at="wait").settles().new_lines()[-1]
        == f"node 0 shows stacks: NCCL: | {BEHIND}"
    )
    assert waits(job, 300) == []
