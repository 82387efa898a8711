"""Ranks of a job that is being suspended: held, saving, ended by something else, and signalled again."""

import signal
from collections.abc import Callable

import pytest

from tests.histories.told_job import Job

HOLD = ["node 0 holds its ranks", "node 1 holds its ranks"]
LEAVE = ["node 0 lets ranks that have saved end", "node 1 lets ranks that have saved end"]
TERM = signal.SIGTERM


def held() -> Job:
    """Return a job of two nodes, all of whose ranks but rank 3 ask; SIGTERM to node 1 wants them to save."""
    job = Job(nodes=2, workers=2).asks(0, 1, 2).settles()
    assert job.signalled(TERM, node=1).settles().saw() == HOLD
    return job


def saving() -> Job:
    """Return this job, whose ranks are to save at step 4."""
    job = held().is_held(4).is_held(4, node=1).settles()
    job.saw()
    return job


def test_the_suspend_signal_asks_at_any_time() -> None:
    """It is not passed on; one to all processes of the job asks once."""
    job = Job(nodes=2, suspend_signal=signal.SIGUSR1)

    assert job.signalled(signal.SIGUSR1).settles().saw() == HOLD
    assert job.passes(0.2).signalled(signal.SIGUSR1, by_parent=True).settles().saw() == []
    job.asks(0, 1).is_held(4).is_held(4, node=1).settles()
    job.passes(1.1).signalled(signal.SIGUSR1, node=1).settles()
    assert job.saw()[0].startswith("node 0 prints: SIGUSR1 on n0: all ranks save at step 4 and end")


def test_a_rank_that_never_asks_is_ended_when_all_others_have_saved() -> None:
    """These end by themselves; they are killed only if they do not end in a grace period."""
    job = saving()
    job.saves(4, 0, 1, 2).settles().saw()

    assert job.passes(25).settles().saw() == [
        *LEAVE,
        "node 1 prints: suspended at step 4 (SIGTERM on n1): stopping 1 worker here",
        "node 1 sends SIGTERM to rank 3",
    ]
    job.dies(3, by=TERM).exits(0, 1).settles().saw()
    assert job.passes(25).settles().saw() == [
        "node 1 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 1 sends SIGKILL to rank 2 and all they started",
    ]
    job.dies(2).settles()
    assert job.saw()[-1] == "node 1 ends with 75: all saved at step 4, as SIGTERM on n1 asked"
    assert job.report(1)[0] == "rank 2 was killed by SIGKILL after 50 s, as it was asked to end"


def test_ranks_that_have_saved_too_late_are_not_spared() -> None:
    """Of the ranks of one node, those that have saved end by themselves."""
    job = saving()
    job.saves(4, 0, 2).settles().passes(30).passes(0).settles()

    assert [line for line in job.saw() if "SIGTERM to" in line] == [
        "node 0 sends SIGTERM to rank 1",
        "node 1 sends SIGTERM to rank 3",
    ]


def test_a_failure_lets_held_ranks_go() -> None:
    """They could not handle SIGTERM, which those get that have saved, too; what they do then is late."""
    job = saving().saves(4, 1, 2).settles()

    assert job.exits(0, code=3).saw() == [
        "node 0 lets ranks that have saved end",
        "node 0 sends SIGTERM to rank 1",
    ]
    assert job.settles().saw() == [
        "node 1 lets ranks that have saved end",
        "node 1 prints: rank 0 on n0 failed: stopping 2 workers here",
        "node 1 sends SIGTERM to ranks 2-3",
    ]
    assert job.asks(3).saves(4, 3).is_held(9).is_held(9, node=1).settles().saw() == []


def test_a_rank_that_ended_before_ranks_are_held() -> None:
    """It cannot save: the others go on, here and on other nodes."""
    before, meanwhile = Job(nodes=2, workers=2), Job(nodes=2, workers=2)

    before.exits(3).settles().asked_to_suspend("clusterrun suspend").settles()
    meanwhile.asked_to_suspend("clusterrun suspend").exits(3).settles()

    cancelled = [
        HOLD[0],
        ("node 0 prints: clusterrun suspend on n0: not suspended, since rank 3 has exited already"),
        "node 0 lets its ranks go on",
    ]
    assert before.saw() == cancelled
    assert meanwhile.saw() == cancelled


def test_all_ranks_end_while_they_are_asked_to_save() -> None:
    """The job has succeeded."""
    job = Job(workers=2).asked_to_suspend("clusterrun suspend").settles()
    job.saw()

    assert job.exits(0, 1).saw() == [LEAVE[0], "node 0 kills what its ranks have left"]
    assert job.settles().saw()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_a_sigterm_that_cannot_suspend_the_job_ends_it() -> None:
    """As it would have without suspend.requested."""
    job = saving()

    assert job.exits(0).settles().saw() == [
        "node 0 prints: SIGTERM on n1: not suspended, since rank 0 has exited already",
        "node 0 lets its ranks go on",
        "node 1 lets ranks that have saved end",
        "node 1 lets its ranks go on",
        (
            "node 1 prints: SIGTERM: stopping 2 workers (grace 25 s, SIGTERM again kills at once);"
            " exit code 143"
        ),
        "node 1 sends SIGTERM to ranks 2-3",
        "node 0 prints: n1 got SIGTERM: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 1",
    ]


@pytest.mark.parametrize("asked", [held, saving])
def test_a_second_sigterm_ends_the_job_at_once(asked: Callable[[], Job]) -> None:
    """More than a second later; sooner, it is the same one, which came by two ways."""
    job = asked()

    assert job.passes(0.5).signalled(TERM, node=1).settles().saw() == []
    assert job.passes(0.6).signalled(TERM, node=1).saw() == [
        "node 1 lets ranks that have saved end",
        "node 1 prints: SIGTERM again: killing 2 workers; exit code 143",
        "node 1 sends SIGKILL to ranks 2-3 and all they started",
    ]
    job.settles().dies(0, 1, 2, 3).settles()
    assert job.saw()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_a_second_sigterm_does_not_wait_for_exit_handlers() -> None:
    """All have saved, and one rank hangs on its way out."""
    job = saving()
    job.asks(3).saves(4, 0, 1, 2, 3).settles().exits(0, 1, 2).settles().saw()

    assert job.passes(2).signalled(TERM, node=1).settles().saw() == [
        "node 1 sends SIGKILL to rank 3 and all they started",
    ]


def test_ranks_that_are_asked_to_end_are_not_held() -> None:
    """The request crosses a signal to another node."""
    job = Job(nodes=2).asked_to_suspend("clusterrun suspend").signalled(signal.SIGINT, node=1)

    lines = job.settles().saw()

    assert HOLD[0] in lines
    assert HOLD[1] not in lines


def test_a_sigterm_while_ranks_are_asked_to_end_asks_for_no_suspension() -> None:
    """It ends the job, as it would have without suspend.requested."""
    job = Job(workers=2, restarts=1).asks(0, 1).settles()

    job.exits(0, code=3).settles().signalled(TERM).settles().dies(1, by=TERM).settles()

    assert job.saw()[-1] == "node 0 ends with 143: it got SIGTERM"


def test_ctrl_c_ends_a_job_that_is_being_suspended() -> None:
    """In order, as always."""
    job = saving()

    assert job.signalled(signal.SIGINT).saw() == [
        "node 0 lets ranks that have saved end",
        "node 0 hides the tracebacks of Ctrl-C",
        (
            "node 0 prints: interrupted: stopping 2 workers (grace 25 s, Ctrl-C again kills at once);"
            " exit code 130"
        ),
        "node 0 sends SIGINT to ranks 0-1",
    ]


def test_the_next_attempt_knows_that_ranks_ask() -> None:
    """SIGTERM asks these to save, though none has asked again yet."""
    job = Job(nodes=2, restarts=1).asks(0).settles()
    job.exits(0, code=1).settles().dies(1, by=TERM).settles().saw()

    assert job.signalled(TERM, node=1).settles().saw() == HOLD


def test_the_next_attempt_knows_of_no_rank_that_has_saved() -> None:
    """All are ended that have not saved in it."""
    job = Job(nodes=2, restarts=1).asks(0, 1).asked_to_suspend("USR1").settles()
    job.is_held(4).is_held(4, node=1).settles().saves(4, 0)
    job.exits(1, code=1).settles().exits(0).settles()
    job.asks(0, 1).is_held(0).is_held(0, node=1).settles().saw()

    lines = job.passes(30).settles().saw()
    assert [line for line in lines if "SIGTERM to" in line] == [
        "node 0 sends SIGTERM to rank 0",
        "node 1 sends SIGTERM to rank 1",
    ]
