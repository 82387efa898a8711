"""Events that come while an attempt ends, at each stage from the first failure to the last line."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"
KILLS = "node 0 sends SIGKILL to rank 0 and all they started"
FAILED = "node 0 ends with 3: rank 1 failed"
RESTARTED = "node 0 starts ranks 0-1, attempt 1"


def moments(*, restarts: int = 0) -> Iterator[tuple[str, Job]]:
    """Yield jobs whose rank 1 has failed: rank 0 is asked to end, killed, cleaned up after, and read."""
    steps: dict[str, Callable[[Job], Job]] = {
        "asked": lambda job: job.exits(1, code=3),
        "killed": lambda job: job.time_passes(25),
        "cleaned up": lambda job: job.dies(0),
        "read": lambda job: job.is_cleaned_up(),
    }
    for count, moment in enumerate(steps, 1):
        job = Job(workers=2, restarts=restarts)
        for step in list(steps.values())[:count]:
            step(job)
        job.delivers_all().new_lines()
        yield moment, job


def last_line(job: Job) -> str:
    """Let time pass until nothing more follows."""
    return job.time_passes(30).time_passes(30).settles().new_lines()[-1]


def test_attempt_ends_by_timeouts_alone() -> None:
    """Rank 0 does not end, no process confirms anything, and no output ends."""
    job = Job(workers=2)

    assert job.time_passes(1000).new_lines() == []
    assert job.exits(1, code=3).new_lines() == ["node 0 sends SIGTERM to rank 0"]
    assert job.time_passes(24.9).new_lines() == []
    assert job.time_passes(0.1).new_lines() == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        KILLS,
    ]
    assert job.time_passes(4.9).new_lines() == []
    assert job.time_passes(0.1).new_lines() == [CLEANS]
    assert job.time_passes(6.9).time_passes(0.1).time_passes(1.9).delivers_all().new_lines() == []
    assert job.time_passes(0.1).delivers_all().new_lines() == [FAILED]


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (lambda job: job.signalled(signal.SIGTERM), "143: it got SIGTERM"),
        (lambda job: job.signalled(signal.SIGHUP), "129: it got SIGHUP"),
        (lambda job: job.signalled(signal.SIGINT), "130: it got SIGINT"),
        (Job.asked_to_stop, "143: it got SIGTERM"),
        (
            lambda job: job.asked_to_stop(at_once=True),
            "143: it got SIGTERM",
        ),
        (
            Job.loses_relay,
            (
                "6: its relay exited with code 1"
                " (no restart: no other attempt can start without its relay)"
            ),
        ),
        (
            Job.loses_fork_server,
            (
                "137: its fork server was killed by SIGKILL"
                " (no restart: no other attempt can start without its fork server)"
            ),
        ),
    ],
)
def test_causes_that_prevent_restart(happens: Callable[[Job], Job], reason: str) -> None:
    """Each is the reason only where a restart would have followed."""
    for _, job in moments(restarts=1):
        assert last_line(happens(job)) == f"node 0 ends with {reason}"
    for _, job in moments():
        assert last_line(happens(job)) == FAILED


def test_causes_that_do_not_prevent_restart() -> None:
    """A closed output ends a job whose ranks run; a forwarded signal ends none."""
    for _, job in moments(restarts=1):
        assert job.output_is_closed().new_lines() == []
        assert last_line(job.signalled(signal.SIGUSR1).signalled(signal.SIGQUIT)) == RESTARTED


def test_grace_period_ends_by_ctrl_c_or_now() -> None:
    """After a failure nothing else ends it."""
    hurry: dict[str, Callable[[Job], Job]] = {
        "Ctrl-C": lambda job: job.signalled(signal.SIGINT),
        "now": lambda job: job.asked_to_stop(at_once=True),
        "SIGTERM": lambda job: job.signalled(signal.SIGTERM),
        "SIGHUP": lambda job: job.signalled(signal.SIGHUP),
        "stop": Job.asked_to_stop,
        "relay": Job.loses_relay,
    }
    followed = {
        (what, moment): job.new_lines()
        for what, happens in hurry.items()
        for moment, job in moments()
        if happens(job)
    }

    now = "node 0 prints: clusterrun stop --now: killing 1 worker; exit code 143"
    assert {key: lines for key, lines in followed.items() if lines} == {
        ("Ctrl-C", "asked"): [KILLS],
        ("now", "asked"): [now, KILLS],
    }


def test_stopping_ranks_die_with_fork_server() -> None:
    """The agent kills their left-over processes unless that is done; the ranks were signalled before."""
    followed = {moment: job.loses_fork_server().new_lines() for moment, job in moments()}

    assert followed == {"asked": [CLEANS], "killed": [CLEANS], "cleaned up": [CLEANS], "read": []}
    for moment, job in moments():
        job.loses_fork_server().settles()
        assert job.report()[0].endswith("as it was asked to end"), moment


def test_signals_that_end_nothing_at_any_moment() -> None:
    """Signals that end nothing."""
    lines = [
        "node 0 passes SIGUSR1 on to ranks that handle it",
        "node 0 passes SIGUSR2 on to ranks that handle it",
        "node 0 stops with its ranks",
        "node 0 continues its ranks",
    ]
    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT)

    for _, job in [("run", Job(workers=2)), *moments()]:
        for number, line in zip(numbers, lines, strict=True):
            assert job.signalled(number).new_lines() == [line]


def test_events_after_success_change_nothing() -> None:
    """The job has succeeded, whatever was signalled or lost."""
    late: list[Callable[[Job], Job]] = [
        Job.loses_relay,
        Job.loses_fork_server,
        lambda job: job.signalled(signal.SIGTERM),
    ]
    for happens in late:
        for job in (Job(restarts=1).exits(0), Job(restarts=1).exits(0).is_cleaned_up()):
            happens(job).settles()
            assert job.new_lines()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_helper_lost_after_signal_is_not_cause() -> None:
    """The signal came first, as a node knows that ends without node 0."""
    for happens in (Job.loses_fork_server, Job.loses_relay):
        one, two = Job().signalled(signal.SIGTERM), Job(nodes=2).signalled(signal.SIGTERM, node=1)

        assert last_line(happens(one)) == "node 0 ends with 143: it got SIGTERM"
        assert last_line(happens(two, 1).loses_node(0)) == "node 1 ends with 143: it got SIGTERM"


def test_late_event_of_earlier_attempt_is_ignored() -> None:
    """An exit that was not waited for, and the last lines of the same rank."""
    job = Job(workers=2, restarts=1)
    job.exits(0, 1, code=3).time_passes(7).time_passes(2).delivers_all()
    assert job.new_lines()[-1] == RESTARTED

    assert job.is_cleaned_up().output_is_read(0).output_is_read(1).new_lines() == []
    assert job.exits(0).time_passes(60).delivers_all().new_lines() == []
    assert job.exits(1).leftovers_end().new_lines() == ["node 0 waits for what its ranks have left"]
    assert job.settles().new_lines() == ["node 0 ends with 0: all ranks have succeeded"]


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (
            lambda job: job.exits(1, code=3),
            "3: rank 1 failed (no restart: exit code 3 is one of --no-restart-exit-codes 3)",
        ),
        (
            lambda job: job.cannot_start(1, "exec", "No such file or directory"),
            (
                "126: rank 1 failed (no restart: a worker that can't be started now can't be started"
                " the next time either)"
            ),
        ),
    ],
)
def test_signal_after_final_failure_is_not_the_reason(
    fails: Callable[[Job], Job], reason: str
) -> None:
    """No restart would have followed without it."""
    job = Job(workers=2, restarts=1, final_codes=[3])
    fails(job).delivers_all().new_lines()

    assert job.signalled(signal.SIGTERM).delivers_all().new_lines() == []
    assert last_line(job) == f"node 0 ends with {reason}"
