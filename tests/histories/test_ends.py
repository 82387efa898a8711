"""How an attempt ends on one node: which ranks are stopped, and when nothing is left of them."""

import signal

from tests.histories.job_history import Job

CLEANS = "node 0 kills what its ranks have left"
WAITS = "node 0 waits for what its ranks have left"


def test_every_rank_succeeds() -> None:
    """A rank that ends well stops no other; the job is over when nothing is left of all."""
    job = Job(workers=2)

    assert job.exits(0).is_read(0).saw() == []
    assert job.exits(1).saw() == [WAITS]
    assert job.settles().saw() == ["node 0 ends with 0: all ranks have succeeded"]


def test_the_last_words_may_come_before_or_after_the_rest_has_ended() -> None:
    """The end waits for both."""
    before, after = Job(), Job()

    assert before.exits(0).is_read(0).hears().saw() == [WAITS]
    assert before.has_nothing_left().saw() == ["node 0 ends with 0: all ranks have succeeded"]
    assert after.exits(0).has_nothing_left().hears().saw() == [WAITS]
    assert after.is_read(0).saw() == ["node 0 ends with 0: all ranks have succeeded"]


def test_the_first_failure_ends_the_others() -> None:
    """SIGTERM, the grace period, SIGKILL to all that they started, what is left, the end."""
    job = Job(workers=3)

    assert job.exits(1, code=3).saw() == ["node 0 sends SIGTERM to ranks 0,2"]
    assert job.passes(24).saw() == []
    assert job.passes(1).saw() == [
        "node 0 prints: 2 workers did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to ranks 0,2 and all they started",
    ]
    assert job.dies(0, 2).saw() == [CLEANS]
    assert job.settles().saw() == ["node 0 ends with 3: rank 1 failed"]


def test_a_second_failure_changes_nothing() -> None:
    """The first one is the cause."""
    job = Job(workers=3)

    assert job.exits(0, code=1).saw() == ["node 0 sends SIGTERM to ranks 1-2"]
    assert job.exits(1, code=2).saw() == []
    assert job.dies(2, by=signal.SIGTERM).settles().saw() == [
        CLEANS,
        "node 0 ends with 1: rank 0 failed",
    ]


def test_programs_other_than_python_are_asked_as_groups() -> None:
    """A shell script does not pass a signal on."""
    job = Job(workers=2, groups=True)

    assert job.exits(0, code=1).saw() == [
        "node 0 sends SIGTERM to rank 1 and all they started",
    ]


def test_a_program_that_cannot_be_executed_ends_the_others() -> None:
    """With the exit code that a shell gives, and without a restart: it would be the same again."""
    job = Job(workers=2, restarts=3)

    assert job.cannot_start(1, "exec", "No such file or directory").saw() == [
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.dies(0, by=signal.SIGTERM).settles().saw() == [
        CLEANS,
        "node 0 ends with 126: rank 1 failed (no restart: a worker that can't be started now can't be started the next time either)",
    ]


def test_such_a_rank_may_end_after_all() -> None:
    """Its last lines are read, too."""
    job = Job(workers=2)
    job.exits(1, code=1).passes(25).passes(5).saw()

    assert job.dies(0).settles().saw() == ["node 0 ends with 1: rank 1 failed"]


def test_output_that_does_not_end_is_given_up() -> None:
    """A process that nobody may kill has the pipe."""
    job = Job()
    job.exits(0, code=1).is_clean().saw()

    assert job.passes(10).hears().saw() == ["node 0 ends with 1: rank 0 failed"]


def test_a_fork_server_that_does_not_answer_is_given_up() -> None:
    """Its answer, which may come after all, changes nothing."""
    job = Job()
    job.exits(0, code=1).is_read(0).saw()

    assert job.passes(10).hears().saw() == ["node 0 ends with 1: rank 0 failed"]
    assert job.is_clean().hears().saw() == []


def test_a_reader_that_goes_ends_the_job_in_order() -> None:
    """As after | head: no restart follows, and the exit code is that of SIGPIPE."""
    job = Job(workers=2, restarts=1)

    assert job.loses_reader().saw() == [
        "node 0 prints: standard output is closed: stopping all workers",
        "node 0 sends SIGTERM to ranks 0-1",
    ]
    assert job.dies(0, by=signal.SIGTERM).dies(1, by=signal.SIGPIPE).settles().saw() == [
        CLEANS,
        "node 0 ends with 141: nobody reads its output",
    ]


def test_a_reader_that_goes_after_a_failure_is_not_the_cause() -> None:
    """The failure is, and its restart goes on."""
    job = Job(workers=2, restarts=1)
    job.exits(0, code=1).saw()

    assert job.loses_reader().saw() == []
    assert job.dies(1, by=signal.SIGTERM).settles().saw() == [
        CLEANS,
        "node 0 starts ranks 0-1, attempt 1",
    ]


def test_without_a_relay_the_job_ends_in_order() -> None:
    """Nobody would read what ranks print."""
    job = Job(workers=2, restarts=1)

    assert job.loses_relay().saw() == ["node 0 sends SIGTERM to ranks 0-1"]
    assert job.exits(0, 1).settles().saw() == [
        CLEANS,
        (
            "node 0 ends with 6: its relay exited with code 1"
            " (no restart: no other attempt can start without its relay)"
        ),
    ]


def test_the_ranks_die_with_the_fork_server() -> None:
    """No other attempt can start without it."""
    job = Job(workers=2, restarts=1)

    assert job.loses_fork_server().settles().saw() == [
        CLEANS,
        (
            "node 0 ends with 137: its fork server was killed by SIGKILL"
            " (no restart: no other attempt can start without its fork server)"
        ),
    ]
