"""Whether a failure is followed by another attempt, when that begins, and what ends the job instead."""

import signal

import pytest

from tests.histories.job_history import Job, refused
from tests.histories.worlds import starts, stops

ERROR = "Traceback\n  File x\nValueError: no such file\n\n"


def fails(job: Job, code: int = 7, last: str = "") -> list[str]:
    """Let rank 1 fail, and rank 0 end as ordered; return what followed of it."""
    return stops(job.exits(1, code=code, last=last), 0)


@pytest.mark.parametrize(("code", "again"), [(3, False), (6, False), (137, False), (4, True)])
def test_exit_codes_that_end_the_job(code: int, *, again: bool) -> None:
    """--no-restart-exit-codes: the user knows that it would fail again. SIGKILL is 137."""
    job = Job(nodes=2, restarts=9, final_codes=(3, 5, 6, 7, 137))

    failed = job.dies(1) if code == 137 else job.exits(1, code=code)

    end = (
        f"ends with {code}: rank 1 failed (no restart: exit code {code} is one of"
        " --no-restart-exit-codes 3,5-7,137)"
    )
    assert stops(failed, 0) == (starts(0, 1) if again else [f"node 0 {end}", f"node 1 {end}"])


@pytest.mark.parametrize(
    ("rank", "code", "last", "seconds", "is_same"),
    [
        (1, 1, ERROR, 4.0, True),
        (1, 1, "another traceback\nValueError: no such file", 9.9, True),
        (1, 1, ERROR, 10.1, False),
        (0, 1, ERROR, 4.0, False),
        (1, 2, ERROR, 4.0, False),
        (1, 1, "ValueError: another file", 4.0, False),
    ],
)
def test_the_same_failure_twice(
    rank: int, code: int, last: str, seconds: float, *, is_same: bool
) -> None:
    """The same rank, with the same last line, soon after its start: it would be so a third time."""
    job, stubborn = Job(nodes=2, restarts=9), Job(nodes=2, restarts=9, no_fail_fast=True)
    for each in (job, stubborn):
        fails(each.passes(4), 1, ERROR)
        each.passes(seconds).exits(rank, code=code, last=last)

    end = (
        "ends with 1: rank 1 failed (no restart: rank 1 failed twice with the same last line"
        " within 10 s of its start (--no-fail-fast restarts anyway))"
    )
    again = starts(0, 1, attempt=2)
    assert stops(job, 1 - rank) == ([f"node 0 {end}", f"node 1 {end}"] if is_same else again)
    assert stops(stubborn, 1 - rank) == again


def test_failures_without_output_may_differ() -> None:
    """Two silent ends are not the same."""
    job = Job(nodes=2, restarts=9)

    for attempt in (1, 2):
        assert fails(job, last=" \n\n") == starts(0, 1, attempt=attempt)


def test_pauses_between_quick_restarts() -> None:
    """A rank that dies at once must not use up all restarts in a second: what it needs may come."""
    job = Job(restarts=2000)
    for attempt, pause in enumerate([0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30], start=1):
        job.exits(0, code=7).settles()
        if pause:
            assert job.saw()[-1] == (
                f"node 0 prints: restarting in {pause:g} s, since workers have failed within 10 s"
                f" of their start {attempt} times in a row"
            )
            job.passes(pause - 0.1).settles()
            assert job.saw() == []
        assert job.passes(0.2).settles().saw()[-1] == f"node 0 starts rank 0, attempt {attempt}"

    # 2 ** 1024 is no float.
    for _ in range(1100):
        job.exits(0, code=7).settles().passes(30).settles()
    assert job.saw()[-1] == "node 0 starts rank 0, attempt 1111"


def test_a_longer_attempt_ends_the_pauses() -> None:
    """Only restarts in a row count."""
    job = Job(nodes=2, restarts=9)

    for attempt, seconds in enumerate((1, 1, 100, 1, 1), start=1):
        assert fails(job.passes(seconds)) == starts(0, 1, attempt=attempt)


def test_a_pause_may_end_the_job() -> None:
    """For a signal; or when a node is lost, whose place stays empty."""
    signalled, lost = Job(nodes=2, restarts=9), Job(nodes=2, restarts=9)
    for job in (signalled, lost):
        [_, _, [pauses]] = (fails(job) for _ in range(3))
        assert pauses.endswith("3 times in a row")

    signalled.signalled(signal.SIGTERM, node=1).settles()
    lost.loses_node(1).settles()

    assert signalled.passes(10).settles().saw()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]
    assert lost.passes(10).settles().saw() == [
        "node 0 ends with 7: rank 1 failed (no restart: node 1 (n1) is gone)",
    ]


def test_the_ranks_of_each_attempt_meet_at_its_own_port() -> None:
    """Late connections of the attempt before must not reach it."""
    job = Job(nodes=2, restarts=1)

    job.port = 31000

    assert [job.meet_at(node) for node in (0, 1)] == ["n0:29500", "n0:29500"]
    fails(job)
    assert [job.meet_at(node) for node in (0, 1)] == ["n0:31000", "n0:31000"]


def test_a_node_that_has_no_fork_server_any_more_declines() -> None:
    """It had reported by then: the others have begun, and stop."""
    job = Job(nodes=2, restarts=3)
    job.exits(1, code=7).settles().loses_fork_server(1)

    assert stops(job, 0) == [
        "node 0 starts rank 0, attempt 1",
        "node 0 prints: the fork server on n1 was killed by SIGKILL: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    end = (
        "ends with 137: its fork server on n1 was killed by SIGKILL"
        " (no restart: no other attempt can start without its fork server on n1)"
    )
    assert stops(job, 0) == [f"node 0 {end}", f"node 1 {end}"]


def test_a_late_report_of_the_attempt_before_changes_nothing() -> None:
    """All have stopped for it already. An agent that names an attempt to come is not trusted."""
    job = Job(nodes=2, restarts=3)
    fails(job)

    assert job.reports_failed(1, 1, attempt=0).settles().saw() == []
    assert job.reports_failed(1, 1, attempt=5).settles().saw()[:3] == [
        refused("FirstFailure"),
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]


def test_each_attempt_counts_its_minutes_anew() -> None:
    """A node that is done says a minute later which still run; one that works again says nothing."""
    job = Job(nodes=2, restarts=1)
    fails(job)

    assert job.passes(100).settles().saw() == []
    job.exits(1).settles().saw()
    assert job.passes(59).settles().saw() == []
    assert job.passes(2).settles().saw() == [
        "node 0 prints: rank 1 exited with code 0 61 s ago; rank 0 still runs",
        "node 1 prints: all workers of this node have exited; still running: n0",
    ]
