"""Whether another attempt follows a failure, when it begins, and what ends the job instead."""

import signal

import pytest

from tests.histories.job_history import Job, refused
from tests.histories.worlds import starts, stops

ERROR = "Traceback\n  File x\nValueError: no such file\n\n"


def fails(job: Job, code: int = 7, last: str = "") -> list[str]:
    """Let rank 1 fail, and rank 0 end as ordered; return what followed of it."""
    return stops(job.exits(1, code=code, last=last), 0)


@pytest.mark.parametrize(("code", "again"), [(3, False), (6, False), (137, False), (4, True)])
def test_no_restart_exit_codes(code: int, *, again: bool) -> None:
    """SIGKILL is 137."""
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
def test_same_failure_twice(
    rank: int, code: int, last: str, seconds: float, *, is_same: bool
) -> None:
    """The same rank failed soon after its start with the same last line, so it would fail a third time."""
    job, stubborn = Job(nodes=2, restarts=9), Job(nodes=2, restarts=9, no_fail_fast=True)
    for each in (job, stubborn):
        fails(each.time_passes(4), 1, ERROR)
        each.time_passes(seconds).exits(rank, code=code, last=last)

    end = (
        "ends with 1: rank 1 failed (no restart: rank 1 failed twice with the same last line"
        " within 10 s of its start (--no-fail-fast restarts anyway))"
    )
    again = starts(0, 1, attempt=2)
    assert stops(job, 1 - rank) == ([f"node 0 {end}", f"node 1 {end}"] if is_same else again)
    assert stops(stubborn, 1 - rank) == again


def test_failures_without_output_may_differ() -> None:
    """Two ends without output are not the same failure."""
    job = Job(nodes=2, restarts=9)

    for attempt in (1, 2):
        assert fails(job, last=" \n\n") == starts(0, 1, attempt=attempt)


def test_delays_between_quick_restarts() -> None:
    """A rank that fails at once must not use up all restarts in a second: what it needs may become available."""
    job = Job(restarts=2000)
    for attempt, pause in enumerate([0, 0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30], start=1):
        job.exits(0, code=7).settles()
        if pause:
            assert job.new_lines()[-1] == (
                f"node 0 prints: restarting in {pause:g} s, since workers have failed within 10 s"
                f" of their start {attempt} times in a row"
            )
            job.time_passes(pause - 0.1).settles()
            assert job.new_lines() == []
        assert (
            job.time_passes(0.2).settles().new_lines()[-1]
            == f"node 0 starts rank 0, attempt {attempt}"
        )

    # 2 ** 1024 is no float.
    for _ in range(1100):
        job.exits(0, code=7).settles().time_passes(30).settles()
    assert job.new_lines()[-1] == "node 0 starts rank 0, attempt 1111"


def test_longer_attempt_ends_delays() -> None:
    """Only consecutive restarts count."""
    job = Job(nodes=2, restarts=9)

    for attempt, seconds in enumerate((1, 1, 100, 1, 1), start=1):
        assert fails(job.time_passes(seconds)) == starts(0, 1, attempt=attempt)


def test_event_during_delay_ends_job() -> None:
    """A signal, or the loss of a node that is not replaced."""
    signalled, lost = Job(nodes=2, restarts=9), Job(nodes=2, restarts=9)
    for job in (signalled, lost):
        [_, _, [pauses]] = (fails(job) for _ in range(3))
        assert pauses.endswith("3 times in a row")

    signalled.signalled(signal.SIGTERM, node=1).settles()
    lost.loses_node(1).settles()

    assert signalled.time_passes(10).settles().new_lines()[-2:] == [
        "node 0 ends with 143: it got SIGTERM",
        "node 1 ends with 143: it got SIGTERM",
    ]
    assert lost.time_passes(10).settles().new_lines() == [
        "node 0 ends with 7: rank 1 failed (no restart: node 1 (n1) is gone)",
    ]


def test_each_attempt_has_its_own_master_port() -> None:
    """Late connections of the previous attempt must not reach it."""
    job = Job(nodes=2, restarts=1)

    job.port = 31000

    assert [job.master_address(node) for node in (0, 1)] == ["n0:29500", "n0:29500"]
    fails(job)
    assert [job.master_address(node) for node in (0, 1)] == ["n0:31000", "n0:31000"]


def test_node_without_fork_server_ends_restarted_job() -> None:
    """It had already reported, so the others have begun, and stop."""
    job = Job(nodes=2, restarts=3)
    job.exits(1, code=7).settles().loses_fork_server(1)

    assert stops(job, 0) == [
        "node 0 starts rank 0, attempt 1",
        "node 0 prints: the fork server on n1 was killed by SIGKILL: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    end = (
        "ends with 137: its fork server on n1 was killed by SIGKILL"
        " (no restart: no other attempt can start without its fork server on n1)"
    )
    assert stops(job, 0) == [f"node 0 {end}", f"node 1 {end}"]


def test_late_report_of_earlier_attempt_is_ignored() -> None:
    """All have already stopped for it. An agent that names a later attempt is not trusted."""
    job = Job(nodes=2, restarts=3)
    fails(job)

    assert job.reports_failed(1, 1, attempt=0).settles().new_lines() == []
    assert job.reports_failed(1, 1, attempt=5).settles().new_lines()[:3] == [
        refused("FirstFailure"),
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]


def test_notices_restart_with_each_attempt() -> None:
    """A node that is done prints after a minute which others run; one that runs again does not."""
    job = Job(nodes=2, restarts=1)
    fails(job)

    assert job.time_passes(100).settles().new_lines() == []
    job.exits(1).settles().new_lines()
    assert job.time_passes(59).settles().new_lines() == []
    assert job.time_passes(2).settles().new_lines() == [
        "node 0 prints: rank 1 exited with code 0 61 s ago; rank 0 still runs",
        "node 1 prints: all workers of this node have exited; still running: n0",
    ]
