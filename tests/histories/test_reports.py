"""What a report contains about each rank, and which failure is the cause."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.job_history import Job

TRACEBACK = "Traceback (most recent call last):\n  File x, line 1\nValueError: it\n"
ECHO = "Traceback (most recent call last):\n  File x\nRuntimeError: Connection closed by peer\n"


def test_report_of_each_rank() -> None:
    """How it ended and when, whether it was stopped, and what SIGKILL did not end."""
    job = Job(workers=3)

    job.time_passes(9).exits(2, code=3).time_passes(1).dies(0, by=signal.SIGTERM).exits(1)
    job.is_cleaned_up(survivors=["pid 9 (python, state D in nfs_wait)"]).settles()

    assert job.new_lines()[-1] == "node 0 ends with 3: rank 2 failed"
    assert job.report() == [
        "rank 0 was killed by SIGTERM after 10 s, as it was asked to end",
        "rank 1 exited with 0 after 10 s, as it was asked to end",
        "rank 2 exited with 3 after 9 s",
        "still left: pid 9 (python, state D in nfs_wait)",
    ]


def test_rank_that_never_ran() -> None:
    """It ran for no time; the others die with the fork server as well."""
    job = Job(workers=2, starting=[1])

    job.time_passes(7).loses_fork_server().settles()

    assert job.report() == [
        "rank 0 was killed by SIGKILL after 7 s, as it was asked to end",
        "rank 1 was killed by SIGKILL after 0 s, as it was asked to end",
    ]


@pytest.mark.parametrize(
    "fails",
    [lambda job: job.exits(0, code=7), lambda job: job.dies(0, by=signal.SIGSEGV)],
)
def test_failure_before_signal_that_ended_job(fails: Callable[[Job], Job]) -> None:
    """The restart was due when Ctrl-C came: the failure is still reported."""
    job = fails(Job(workers=2, restarts=1))

    job.signalled(signal.SIGINT).exits(1, code=9).settles()

    assert job.new_lines()[-1] == "node 0 ends with 130: it got SIGINT"
    assert job.report()[-1] == "rank 0 had failed before"


def test_rank_killed_by_the_signal_is_not_an_earlier_failure() -> None:
    """A scheduler signals all processes at once, and a rank may end first."""
    job = Job(workers=2, restarts=1)

    job.dies(0, by=signal.SIGTERM).signalled(signal.SIGTERM)
    job.exits(1, code=1, last=TRACEBACK).settles()

    assert job.new_lines()[-1] == "node 0 ends with 143: it got SIGTERM"
    assert job.report() == [
        "rank 0 was killed by SIGTERM after 0 s",
        "rank 1 exited with 1 after 0 s, as it was asked to end",
    ]


def test_failure_is_dated_by_its_exception() -> None:
    """Exit handlers delay its end; a rank that fails because it is gone has ended before."""
    earlier, later = Job(workers=2), Job(workers=2)

    earlier.exits(0, code=1).time_passes(2).exits(1, code=3, since=2.5).settles()
    later.exits(0, code=1).time_passes(2).exits(1, code=3, since=1.5).settles()

    assert earlier.new_lines()[-1] == "node 0 ends with 3: rank 1 failed"
    assert earlier.report()[1] == "rank 1 exited with 3 after 2 s"
    assert later.new_lines()[-1] == "node 0 ends with 1: rank 0 failed"
    assert later.report()[1] == "rank 1 exited with 3 after 2 s, as it was asked to end"


def test_rank_that_was_exiting_with_known_code() -> None:
    """The code and the time of its failure count, not the SIGTERM that ended it."""
    job = Job(workers=2)

    job.exits(0, code=9).time_passes(2).dies(1, by=signal.SIGTERM, since=2.5, code=3).settles()

    assert job.new_lines()[-1] == "node 0 ends with 3: rank 1 failed"
    assert job.report()[1] == "rank 1 exited with 3 after 2 s"


@pytest.mark.parametrize(
    ("last", "has_failed"),
    [
        (TRACEBACK, True),
        (f"{TRACEBACK}\n{TRACEBACK}", True),
        ("".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()), True),
        (f"{TRACEBACK}Exception ignored in: <Store>\n{TRACEBACK}", True),
        (f"Exception ignored in: <Store>\n{TRACEBACK}", False),
        (f"{TRACEBACK}epoch 2\n", False),
        ("", False),
    ],
)
def test_rank_that_was_exiting_when_sigterm_came(last: str, *, has_failed: bool) -> None:
    """Its last lines are an exception: it had failed by itself, and the peer that failed because of it ended first."""
    job, unasked = Job(workers=2), Job()

    job.exits(0, code=9, last=ECHO).dies(1, by=signal.SIGTERM, last=last).settles()

    how = "exited with 1" if has_failed else "was killed by SIGTERM"
    assert job.report()[1] == f"rank 1 {how} after 0 s, as it was asked to end"
    unasked.dies(0, by=signal.SIGTERM, last=last).settles()
    assert unasked.report() == ["rank 0 was killed by SIGTERM after 0 s"]
    cause = "1: rank 1 failed" if has_failed else "9: rank 0 failed"
    assert job.new_lines()[-1] == f"node 0 ends with {cause}"
