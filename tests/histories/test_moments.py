"""What else comes while an attempt ends: at each moment, from the first failure to the last line."""

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
        "killed": lambda job: job.passes(25),
        "cleaned up": lambda job: job.dies(0),
        "read": lambda job: job.is_clean(),
    }
    for count, moment in enumerate(steps, 1):
        job = Job(workers=2, restarts=restarts)
        for step in list(steps.values())[:count]:
            step(job)
        job.hears().saw()
        yield moment, job


def last_line(job: Job) -> str:
    """Let time pass until nothing more follows."""
    return job.passes(30).passes(30).settles().saw()[-1]


def test_time_alone_brings_the_end() -> None:
    """Rank 0 does not end, no process confirms anything, and no output ends."""
    job = Job(workers=2)

    assert job.passes(1000).saw() == []
    assert job.exits(1, code=3).saw() == ["node 0 sends SIGTERM to rank 0"]
    assert job.passes(24.9).saw() == []
    assert job.passes(0.1).saw() == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        KILLS,
    ]
    assert job.passes(4.9).saw() == []
    assert job.passes(0.1).saw() == [CLEANS]
    assert job.passes(6.9).passes(0.1).passes(1.9).hears().saw() == []
    assert job.passes(0.1).hears().saw() == [FAILED]


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
def test_what_prevents_a_restart(happens: Callable[[Job], Job], reason: str) -> None:
    """It is the reason only where a restart would have followed."""
    for _, job in moments(restarts=1):
        assert last_line(happens(job)) == f"node 0 ends with {reason}"
    for _, job in moments():
        assert last_line(happens(job)) == FAILED


def test_what_prevents_no_restart() -> None:
    """A closed output ends a job whose ranks run; a signal that is passed on ends none."""
    for _, job in moments(restarts=1):
        assert job.loses_reader().saw() == []
        assert last_line(job.signalled(signal.SIGUSR1).signalled(signal.SIGQUIT)) == RESTARTED


def test_what_a_person_hurries() -> None:
    """The grace period after a failure ends by Ctrl-C and by ``--now``, and by nothing else."""
    hurry: dict[str, Callable[[Job], Job]] = {
        "Ctrl-C": lambda job: job.signalled(signal.SIGINT),
        "now": lambda job: job.asked_to_stop(at_once=True),
        "SIGTERM": lambda job: job.signalled(signal.SIGTERM),
        "SIGHUP": lambda job: job.signalled(signal.SIGHUP),
        "stop": Job.asked_to_stop,
        "relay": Job.loses_relay,
    }
    followed = {
        (what, moment): job.saw()
        for what, happens in hurry.items()
        for moment, job in moments()
        if happens(job)
    }

    now = "node 0 prints: clusterrun stop --now: killing 1 worker; exit code 143"
    assert {key: lines for key, lines in followed.items() if lines} == {
        ("Ctrl-C", "asked"): [KILLS],
        ("now", "asked"): [now, KILLS],
    }


def test_ranks_that_are_ending_die_with_the_fork_server() -> None:
    """The agent kills what they left, unless that has been done; they were asked to end before."""
    followed = {moment: job.loses_fork_server().saw() for moment, job in moments()}

    assert followed == {"asked": [CLEANS], "killed": [CLEANS], "cleaned up": [CLEANS], "read": []}
    for moment, job in moments():
        job.loses_fork_server().settles()
        assert job.report()[0].endswith("as it was asked to end"), moment


def test_what_means_the_same_from_the_first_to_the_last_moment() -> None:
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
            assert job.signalled(number).saw() == [line]


def test_what_comes_after_all_have_succeeded_changes_nothing() -> None:
    """The job has succeeded, too, whatever was signalled or lost."""
    late: list[Callable[[Job], Job]] = [
        Job.loses_relay,
        Job.loses_fork_server,
        lambda job: job.signalled(signal.SIGTERM),
    ]
    for happens in late:
        for job in (Job(restarts=1).exits(0), Job(restarts=1).exits(0).is_clean()):
            happens(job).settles()
            assert job.saw()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_a_helper_that_is_lost_after_a_signal_is_not_the_cause() -> None:
    """The signal came first; so a node knows that ends without an answer of node 0."""
    for happens in (Job.loses_fork_server, Job.loses_relay):
        one, two = Job().signalled(signal.SIGTERM), Job(nodes=2).signalled(signal.SIGTERM, node=1)

        assert last_line(happens(one)) == "node 0 ends with 143: it got SIGTERM"
        assert last_line(happens(two, 1).loses_node(0)) == "node 1 ends with 143: it got SIGTERM"


def test_a_late_message_of_an_attempt_does_not_count_for_the_next() -> None:
    """An end that was not waited for, and the last lines of the same rank."""
    job = Job(workers=2, restarts=1)
    job.exits(0, 1, code=3).passes(7).passes(2).hears()
    assert job.saw()[-1] == RESTARTED

    assert job.is_clean().is_read(0).is_read(1).saw() == []
    assert job.exits(0).passes(60).hears().saw() == []
    assert job.exits(1).has_nothing_left().saw() == ["node 0 waits for what its ranks have left"]
    assert job.settles().saw() == ["node 0 ends with 0: all ranks have succeeded"]
