"""How an attempt ends on one node: which ranks are stopped, and when no process is left."""

import signal

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"
WAITS = "node 0 waits for what its ranks have left"


def test_every_rank_succeeds() -> None:
    """A rank that succeeds stops no other; the job ends when no process of any rank is left."""
    job = Job(workers=2)

    assert job.exits(0).output_is_read(0).new_lines() == []
    assert job.exits(1).new_lines() == [WAITS]
    assert job.settles().new_lines() == ["node 0 ends with 0: all ranks have succeeded"]


def test_output_ends_before_or_after_cleanup() -> None:
    """The end waits for both."""
    before, after = Job(), Job()

    assert before.exits(0).output_is_read(0).delivers_all().new_lines() == [WAITS]
    assert before.leftovers_end().new_lines() == ["node 0 ends with 0: all ranks have succeeded"]
    assert after.exits(0).leftovers_end().delivers_all().new_lines() == [WAITS]
    assert after.output_is_read(0).new_lines() == ["node 0 ends with 0: all ranks have succeeded"]


def test_first_failure_stops_the_others() -> None:
    """SIGTERM, the grace period, SIGKILL to their groups, then the left-over processes."""
    job = Job(workers=3)

    assert job.exits(1, code=3).new_lines() == ["node 0 sends SIGTERM to ranks 0,2"]
    assert job.time_passes(24).new_lines() == []
    assert job.time_passes(1).new_lines() == [
        "node 0 prints: 2 workers did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to ranks 0,2 and all they started",
    ]
    assert job.dies(0, 2).new_lines() == [CLEANS]
    assert job.settles().new_lines() == ["node 0 ends with 3: rank 1 failed"]


def test_second_failure_changes_nothing() -> None:
    """The first one is the cause."""
    job = Job(workers=3)

    assert job.exits(0, code=1).new_lines() == ["node 0 sends SIGTERM to ranks 1-2"]
    assert job.exits(1, code=2).new_lines() == []
    assert job.dies(2, by=signal.SIGTERM).settles().new_lines() == [
        CLEANS,
        "node 0 ends with 1: rank 0 failed",
    ]


def test_other_programs_are_signalled_as_groups() -> None:
    """A shell script does not forward a signal."""
    job = Job(workers=2, groups=True)

    assert job.exits(0, code=1).new_lines() == [
        "node 0 sends SIGTERM to rank 1 and all they started",
    ]


def test_program_that_cannot_be_executed_ends_job() -> None:
    """The exit code is a shell's, and no restart follows, because it would fail again."""
    job = Job(workers=2, restarts=3)

    assert job.cannot_start(1, "exec", "No such file or directory").new_lines() == [
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().new_lines() == [
        CLEANS,
        "node 0 ends with 126: rank 1 failed (no restart: a worker that can't be started now can't be started the next time either)",
    ]


def test_unkillable_rank_ends_after_all() -> None:
    """Its last lines are read as well."""
    job = Job(workers=2)
    job.exits(1, code=1).time_passes(25).time_passes(5).new_lines()

    assert job.dies(0).settles().new_lines() == ["node 0 ends with 1: rank 1 failed"]


def test_output_that_does_not_end_is_not_waited_for() -> None:
    """A process that cannot be killed holds the pipe."""
    job = Job()
    job.exits(0, code=1).is_cleaned_up().new_lines()

    assert job.time_passes(10).delivers_all().new_lines() == ["node 0 ends with 1: rank 0 failed"]


def test_fork_server_that_does_not_respond_is_not_waited_for() -> None:
    """A late response changes nothing."""
    job = Job()
    job.exits(0, code=1).output_is_read(0).new_lines()

    assert job.time_passes(10).delivers_all().new_lines() == ["node 0 ends with 1: rank 0 failed"]
    assert job.is_cleaned_up().delivers_all().new_lines() == []


def test_closed_output_ends_job() -> None:
    """As with | head: no restart follows, and the exit code is that of SIGPIPE."""
    job = Job(workers=2, restarts=1)

    assert job.output_is_closed().new_lines() == [
        "node 0 prints: standard output is closed: stopping all workers",
        "node 0 sends SIGTERM to ranks 0-1",
    ]
    assert job.dies(0, by=signal.SIGTERM).dies(1, by=signal.SIGPIPE).settles().new_lines() == [
        CLEANS,
        "node 0 ends with 141: nobody reads its output",
    ]


def test_closed_output_after_failure_is_not_cause() -> None:
    """The failure is, and its restart follows."""
    job = Job(workers=2, restarts=1)
    job.exits(0, code=1).new_lines()

    assert job.output_is_closed().new_lines() == []
    assert job.dies(1, by=signal.SIGTERM).settles().new_lines() == [
        CLEANS,
        "node 0 starts ranks 0-1, attempt 1",
    ]


def test_lost_relay_ends_job() -> None:
    """No process would read what ranks print."""
    job = Job(workers=2, restarts=1)

    assert job.loses_relay().new_lines() == ["node 0 sends SIGTERM to ranks 0-1"]
    assert job.exits(0, 1).settles().new_lines() == [
        CLEANS,
        (
            "node 0 ends with 6: its relay exited with code 1"
            " (no restart: no other attempt can start without its relay)"
        ),
    ]


def test_lost_fork_server_ends_job() -> None:
    """The kernel kills its ranks, and no other attempt can start."""
    job = Job(workers=2, restarts=1)

    assert job.loses_fork_server().settles().new_lines() == [
        CLEANS,
        (
            "node 0 ends with 137: its fork server was killed by SIGKILL"
            " (no restart: no other attempt can start without its fork server)"
        ),
    ]
