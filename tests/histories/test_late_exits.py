"""Ranks whose scripts have failed and whose processes do not exit: a thread or a handler holds them."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.job_history import Job

ASKS = "node 0 asks its ranks for their stacks"
NAMED = "failed 5 s ago and has not exited, in upload at train.py:7"


def test_it_is_named_then_killed_and_the_cause() -> None:
    """After 5 s with the place where it hangs; at the end of the grace period, for all ranks."""
    job = Job(nodes=2, workers=2)

    assert job.hangs_at_exit(1, since=1).settles().saw() == []
    assert job.passes(4).saw() == [ASKS]
    assert job.shows(0, at="wait").shows(1, at="upload").settles().saw() == [
        (
            f"node 0 prints: rank 1 {NAMED}: it is killed 25 s after its failure"
            " (--shutdown-timeout gives it longer)"
        ),
    ]
    assert job.passes(19.9).saw() == []
    assert job.passes(0.1).saw() == [
        (
            "node 0 prints: rank 1 did not exit within 25 s (--shutdown-timeout) of its failure:"
            " killing it"
        ),
        "node 0 sends SIGKILL to rank 1 and all they started",
    ]
    assert job.passes(0.9).saw() == []
    assert job.dies(1, since=25, code=1).settles().saw() == [
        "node 0 sends SIGTERM to rank 0",
        "node 1 prints: rank 1 on n0 failed: stopping 2 workers here",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    job.exits(0, 2, 3, code=1).settles()
    assert job.saw()[-1] == "node 1 ends with 1: rank 1 failed"
    assert job.report()[1] == (
        'rank 1 exited with 1 after 25 s, hung in File "/train.py", line 7 in upload'
    )


def test_one_that_exits_in_time_is_not_named() -> None:
    """Its exit ends the attempt as always, if it is a failure."""
    job, named, good = Job(workers=2), Job(workers=2), Job(workers=2)

    job.hangs_at_exit(1).passes(5).exits(1, code=1).shows(0, at="wait").settles()

    assert job.saw() == [ASKS, "node 0 sends SIGTERM to rank 0"]
    assert job.dies(0, by=signal.SIGTERM).settles().report()[1] == "rank 1 exited with 1 after 5 s"
    named.hangs_at_exit(1).passes(5).shows(0, 1, at="upload").settles().exits(1, code=1).exits(
        0
    ).settles()
    assert named.report()[1] == "rank 1 exited with 1 after 5 s"
    assert good.hangs_at_exit(1).exits(1).passes(5).passes(20).saw() == []


@pytest.mark.parametrize(("grace", "asked_after"), [(2, 2), (0, 1), (25, 5)])
def test_a_stack_that_does_not_come_is_not_awaited_for_long(grace: int, asked_after: int) -> None:
    """The relay may hang. A traceback has a second to be printed, also without a grace period."""
    job = Job(workers=2, grace=grace)
    job.hangs_at_exit(1)

    assert job.passes(asked_after - 0.1).saw() == []
    assert job.passes(0.1).saw() == [ASKS]
    assert job.passes(max(4, grace - asked_after) - 0.1).saw() == []
    assert job.passes(0.1).saw()[1:] == ["node 0 sends SIGKILL to rank 1 and all they started"]
    job.dies(1).passes(30).dies(0).settles()
    assert "hung" not in job.report()[1]


def test_two_are_looked_at_at_once() -> None:
    """Each has its own time: a stack of one that has failed later is not shown before it is due."""
    together, apart = Job(workers=2), Job(workers=2)
    together.hangs_at_exit(0, 1)
    apart.hangs_at_exit(1).passes(3).hangs_at_exit(0)

    assert together.passes(5).saw() == [ASKS]
    together.shows(0, at="").shows(1, at="upload").settles()
    assert [line.partition(":")[2].partition(":")[0] for line in together.saw()] == [
        " rank 0 failed 5 s ago and has not exited",
        f" rank 1 {NAMED.partition(':')[0]}",
    ]
    assert apart.passes(2).saw() == [ASKS]
    [line] = apart.shows(0, 1, at="upload").settles().saw()
    assert line.startswith(f"node 0 prints: rank 1 {NAMED}: ")
    assert apart.passes(3).saw() == [ASKS]
    [line] = apart.shows(0, 1, at="upload").settles().saw()
    assert line.startswith("node 0 prints: rank 0 failed 5 s ago")


@pytest.mark.parametrize("job", [lambda: Job(nodes=2), lambda: Job(workers=2).exits(1)])
def test_others_wait_for_it_on_other_nodes_or_have_succeeded(job: Callable[[], Job]) -> None:
    """Only a job of one rank has no other."""
    hung = job().hangs_at_exit(0).passes(5).shows(0, at="upload").settles()

    assert "it is killed 25 s after its failure" in hung.saw()[-1]


@pytest.mark.parametrize(
    ("workers", "debugged", "why"),
    [
        (1, False, "no other rank waits for it"),
        (2, True, "it is being debugged"),
    ],
)
def test_one_that_is_named_and_left_alone(workers: int, *, debugged: bool, why: str) -> None:
    """No time limit ends it."""
    job = Job(workers=workers, debugged=debugged)
    job.hangs_at_exit(0).passes(5).shows(*range(workers), at="upload").settles()

    assert job.saw() == [ASKS, f"node 0 prints: rank 0 {NAMED}: it is left alone, as {why}"]
    assert job.passes(1000).saw() == []


def test_it_gets_no_sigterm_for_the_failure_of_another_rank() -> None:
    """Its traceback may be the report; it is killed with the others. A user's signal reaches it."""
    before, after, signalled = Job(workers=3), Job(workers=3), Job(workers=3)

    assert before.hangs_at_exit(0).exits(1, code=3).saw() == ["node 0 sends SIGTERM to rank 2"]
    after.exits(1, code=3).saw()
    assert after.hangs_at_exit(0).passes(5).saw() == []
    for job, rest in ((before, 25), (after, 20)):
        assert job.passes(rest).saw()[1:] == [
            "node 0 sends SIGKILL to ranks 0,2 and all they started"
        ]
    signalled.hangs_at_exit(0).signalled(signal.SIGTERM)
    assert signalled.saw()[1:] == ["node 0 sends SIGTERM to ranks 0-2"]
