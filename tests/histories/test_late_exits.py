"""Ranks whose scripts have failed but whose processes do not exit, because of a thread or a handler."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.job_history import Job

ASKS = "node 0 asks its ranks for their stacks"
NAMED = "failed 5 s ago and has not exited, in upload at train.py:7"


def test_rank_that_does_not_exit_is_named_then_killed() -> None:
    """After 5 s with the place where it hangs; it is killed at the end of the grace period, and is the cause."""
    job = Job(nodes=2, workers=2)

    assert job.hangs_at_exit(1, since=1).settles().new_lines() == []
    assert job.time_passes(4).new_lines() == [ASKS]
    assert job.shows_stack(0, at="wait").shows_stack(1, at="upload").settles().new_lines() == [
        (
            f"node 0 prints: rank 1 {NAMED}: it is killed 25 s after its failure"
            " (--shutdown-timeout gives it longer)"
        ),
    ]
    assert job.time_passes(19.9).new_lines() == []
    assert job.time_passes(0.1).new_lines() == [
        (
            "node 0 prints: rank 1 did not exit within 25 s (--shutdown-timeout) of its failure:"
            " killing it"
        ),
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]
    assert job.time_passes(0.9).new_lines() == []
    assert job.dies(1, since=25, code=1).settles().new_lines() == [
        "node 0 sends SIGTERM to rank 0",
        "node 1 prints: rank 1 on n0 failed: stopping 2 workers on this node",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    job.exits(0, 2, 3, code=1).settles()
    assert job.new_lines()[-1] == "node 1 ends with 1: rank 1 failed"
    assert job.report()[1] == (
        'rank 1 exited with 1 after 25 s, hung in File "/train.py", line 7 in upload'
    )


def test_rank_that_exits_in_time_is_not_named() -> None:
    """Its exit ends the attempt as usual, if it is a failure."""
    job, named, good = Job(workers=2), Job(workers=2), Job(workers=2)

    job.hangs_at_exit(1).time_passes(5).exits(1, code=1).shows_stack(0, at="wait").settles()

    assert job.new_lines() == [ASKS, "node 0 sends SIGTERM to rank 0"]
    assert job.dies(0, by=signal.SIGTERM).settles().report()[1] == "rank 1 exited with 1 after 5 s"
    named.hangs_at_exit(1).time_passes(5).shows_stack(0, 1, at="upload").settles().exits(
        1, code=1
    ).exits(0).settles()
    assert named.report()[1] == "rank 1 exited with 1 after 5 s"
    assert good.hangs_at_exit(1).exits(1).time_passes(5).time_passes(20).new_lines() == []


@pytest.mark.parametrize(("grace", "asked_after"), [(2, 2), (0, 1), (25, 5)])
def test_missing_stack_is_not_waited_for_long(grace: int, asked_after: int) -> None:
    """The relay may hang. A traceback gets a second to be printed, without a grace period as well."""
    job = Job(workers=2, grace=grace)
    job.hangs_at_exit(1)

    assert job.time_passes(asked_after - 0.1).new_lines() == []
    assert job.time_passes(0.1).new_lines() == [ASKS]
    assert job.time_passes(max(4, grace - asked_after) - 0.1).new_lines() == []
    assert job.time_passes(0.1).new_lines()[1:] == [
        "node 0 sends SIGKILL to rank 1 and all they started"
    ]
    job.dies(1).time_passes(30).dies(0).settles()
    assert "hung" not in job.report()[1]


def test_two_ranks_do_not_exit() -> None:
    """Each has its own deadline: a stack of a rank that failed later is not printed early."""
    together, apart = Job(workers=2), Job(workers=2)
    together.hangs_at_exit(0, 1)
    apart.hangs_at_exit(1).time_passes(3).hangs_at_exit(0)

    assert together.time_passes(5).new_lines() == [ASKS]
    together.shows_stack(0, at="").shows_stack(1, at="upload").settles()
    assert [line.partition(":")[2].partition(":")[0] for line in together.new_lines()] == [
        " rank 0 failed 5 s ago and has not exited",
        f" rank 1 {NAMED.partition(':')[0]}",
    ]
    assert apart.time_passes(2).new_lines() == [ASKS]
    [line] = apart.shows_stack(0, 1, at="upload").settles().new_lines()
    assert line.startswith(f"node 0 prints: rank 1 {NAMED}: ")
    assert apart.time_passes(3).new_lines() == [ASKS]
    [line] = apart.shows_stack(0, 1, at="upload").settles().new_lines()
    assert line.startswith("node 0 prints: rank 0 failed 5 s ago")


@pytest.mark.parametrize("job", [lambda: Job(nodes=2), lambda: Job(workers=2).exits(1)])
def test_ranks_of_other_nodes_wait_for_it(job: Callable[[], Job]) -> None:
    """Only in a job of one rank does no other rank wait."""
    hung = job().hangs_at_exit(0).time_passes(5).shows_stack(0, at="upload").settles()

    assert "it is killed 25 s after its failure" in hung.new_lines()[-1]


@pytest.mark.parametrize(
    ("workers", "debugged", "why"),
    [
        (1, False, "no other rank waits for it"),
        (2, True, "it is being debugged"),
    ],
)
def test_only_rank_is_named_and_not_killed(workers: int, *, debugged: bool, why: str) -> None:
    """No time limit ends it."""
    job = Job(workers=workers, debugged=debugged)
    job.hangs_at_exit(0).time_passes(5).shows_stack(*range(workers), at="upload").settles()

    assert job.new_lines() == [ASKS, f"node 0 prints: rank 0 {NAMED}: it is left alone, as {why}"]
    assert job.time_passes(1000).new_lines() == []


def test_failing_rank_gets_no_sigterm_for_other_failure() -> None:
    """Its traceback may be the report; it is killed with the others. A user's signal reaches it."""
    before, after, signalled = Job(workers=3), Job(workers=3), Job(workers=3)

    assert before.hangs_at_exit(0).exits(1, code=3).new_lines() == [
        "node 0 sends SIGTERM to rank 2"
    ]
    after.exits(1, code=3).new_lines()
    assert after.hangs_at_exit(0).time_passes(5).new_lines() == []
    for job, rest in ((before, 25), (after, 20)):
        assert job.time_passes(rest).new_lines()[1:] == [
            "node 0 sends SIGKILL to ranks 0,2 and all they started"
        ]
    signalled.hangs_at_exit(0).signalled(signal.SIGTERM)
    assert signalled.new_lines()[1:] == ["node 0 sends SIGTERM to ranks 0-2"]
