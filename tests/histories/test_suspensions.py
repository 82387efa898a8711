"""All ranks save at one step and the job ends; or it goes on, or ends without."""

import signal

import pytest

from tests.histories.job_history import Job

AGREED = (
    "node 0 prints: SIGUSR1 on n1: all ranks save at step 6 and end (--suspend-grace 30 s)",
    "node 0 lets its ranks go on, to save at step 6",
    "node 1 lets its ranks go on, to save at step 6",
)


def saving(by: str = "SIGUSR1", *, silent: bool = False) -> Job:
    """Return a job whose ranks are to save at step 6; ``silent``: rank 1 has never called."""
    job = Job(nodes=2).asks(0)
    if not silent:
        job.asks(1)
    job.settles().asked_to_suspend(by, node=1).settles().is_held(6).is_held(6, node=1).settles()
    job.saw()
    return job


def test_the_step_after_the_furthest_rank_is_agreed_on() -> None:
    """All are held first; the answer follows the last report, and node 0 prints it."""
    job = Job(nodes=2)
    job.asks(0, 1).settles()

    assert job.asked_to_suspend("SIGUSR1", node=1).settles().saw() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert job.is_held(4).settles().saw() == []
    assert job.is_held(6, node=1).settles().saw() == [*AGREED]


def test_a_job_is_suspended_once_all_ranks_have_saved() -> None:
    """All nodes end with the exit code that a scheduler knows, whatever exit handlers do."""
    job = Job(nodes=2, workers=2, suspend_code=99)
    job.asks(0, 1, 2, 3).settles().asked_to_suspend("SIGUSR1", node=1).settles()
    job.is_held(6).is_held(6, node=1).settles().saw()

    assert job.saves(6, 0, 2, 3).settles().saw() == []
    assert job.saves(6, 1).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
    ]
    assert job.exits(0, 1, 2).exits(3, code=1).settles().saw()[-2:] == [
        "node 0 ends with 99: all saved at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 99: all saved at step 6, as SIGUSR1 on n1 asked",
    ]


def test_sigterm_asks_once_a_rank_of_the_job_has_asked() -> None:
    """Before that, it ends the job."""
    asked, unasked = Job(nodes=2), Job(nodes=2)
    asked.asks(0).settles()

    assert asked.signalled(signal.SIGTERM, node=1).settles().saw() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert "node 1 sends SIGTERM to rank 1" in unasked.signalled(signal.SIGTERM, node=1).saw()


def test_the_signal_of_an_option_asks_at_any_time() -> None:
    """It is not passed on; one to all processes of the job comes by two ways, and is one."""
    job = Job(nodes=2, suspend_signal=signal.SIGUSR1)

    job.signalled(signal.SIGUSR1, by_parent=True).passes(0.2).signalled(signal.SIGUSR1)

    assert job.settles().saw() == ["node 0 holds its ranks", "node 1 holds its ranks"]


def test_a_second_request_is_the_same_one() -> None:
    """From another node, before and after the step is agreed on."""
    job = Job(nodes=2).asks(0, 1).settles().asked_to_suspend("SIGUSR1", node=1).settles()
    job.saw()

    assert job.asked_to_suspend("clusterrun suspend").settles().saw() == []
    assert job.is_held(4).is_held(6, node=1).settles().saw() == [*AGREED]
    assert job.asked_to_suspend("SIGUSR1").is_held(7).settles().saw() == []


def test_a_request_waits_for_the_first_calls() -> None:
    """All save at their first one, and the time that they have for it begins with that."""
    job = Job(nodes=2)
    job.asked_to_suspend("clusterrun suspend").settles()

    job.is_held(0).is_held(0, node=1).settles()

    assert job.saw()[-3:] == [
        (
            "node 0 prints: clusterrun suspend on n0: all ranks save at their first call of"
            " suspend.requested() and end (--suspend-grace 30 s)"
        ),
        "node 0 lets its ranks go on, to save at step 0",
        "node 1 lets its ranks go on, to save at step 0",
    ]
    assert job.passes(5).settles().saw() == [
        (
            "node 0 prints: clusterrun suspend on n0: waits for ranks 0-1 to call suspend.requested()"
            " for the first time"
        ),
    ]
    assert job.asked_to_suspend("clusterrun suspend").passes(1000).asks(0).settles().saw() == []
    assert job.passes(29.5).settles().saw() == []
    assert "node 0 sends SIGTERM to rank 0" in job.passes(0.5).settles().saw()


def test_ranks_that_do_not_save_are_named_and_ended() -> None:
    """Named after 5 s, ended after the grace period; the exit code says that not all is saved."""
    job, both = saving(), saving(silent=True)
    job.saves(6, 0).settles()

    again = "clusterrun suspend, typed again, ends the job without waiting"
    late = f"SIGUSR1 on n1: waits for rank 1 to save; {again}"
    assert job.asks_about_ranks().passes(2).settles().saw() == [
        f"node 0 has all answers to its query 1: node 1 (n1) does not answer; {late}",
        "node 1 answers a query",
    ]
    assert job.passes(3).settles().saw() == [f"node 0 prints: {late}"]
    first = "rank 1 to call suspend.requested() for the first time"
    assert both.passes(5).settles().saw() == [
        f"node 0 prints: SIGUSR1 on n1: waits for rank 0 to save and for {first}; {again}",
    ]
    assert job.passes(25).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        "node 1 prints: not all ranks saved within 30 s (SIGUSR1 on n1): stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(0, 1, by=signal.SIGTERM).settles().saw()[-2:] == [
        "node 0 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
    ]


def test_an_agent_that_does_not_answer_holds_no_rank_for_ever() -> None:
    """The grace period begins with the request; its ranks are named."""
    job = Job(nodes=2).asked_to_suspend("SIGUSR1").settles().is_held(4).settles()
    job.saw()

    assert job.passes(29.5).settles().saw() == []
    job.passes(0.5).settles().exits(0, 1).settles()
    assert (
        job.saw()[-1] == "node 1 ends with 7: rank 1 did not save at step 4, as SIGUSR1 on n0 asked"
    )


def test_ranks_that_have_never_called_are_not_waited_for_long() -> None:
    """They may never call; the others have saved."""
    job = saving(silent=True)
    job.saves(6, 0).settles()

    assert job.passes(4.5).settles().saw() == []
    assert job.passes(0.5).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        "node 1 prints: suspended at step 6 (SIGUSR1 on n1): stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.exits(0).dies(1, by=signal.SIGTERM).settles().saw()[-1] == (
        "node 1 ends with 75: all but rank 1 saved at step 6, as SIGUSR1 on n1 asked"
    )


@pytest.mark.parametrize("by", ["SIGUSR1", "clusterrun suspend"])
def test_a_person_does_not_wait_for_ranks_that_were_named(by: str) -> None:
    """Typed again, the request ends the job at once; a scheduler's second signal does not."""
    job = saving(by)
    job.saves(6, 0).asked_to_suspend("clusterrun suspend").settles().saw()

    assert job.passes(5).settles().saw() == [
        (
            f"node 0 prints: {by} on n1: waits for rank 1 to save; clusterrun suspend, typed again,"
            " ends the job without waiting"
        ),
    ]
    assert job.asked_to_suspend("SIGUSR1").settles().saw() == []
    assert job.asked_to_suspend("clusterrun suspend").settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        (
            f"node 1 prints: not all ranks saved before the second request ({by} on n1): stopping 1"
            " worker here"
        ),
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.exits(0, 1).settles().saw()[-1] == (
        f"node 1 ends with 7: rank 1 did not save at step 6 when it was typed again, as {by} on n1"
        " asked"
    )


def test_a_rank_that_ends_well_cancels_the_suspension() -> None:
    """So will the others soon; a later request is refused in the same way."""
    job = saving()

    assert job.exits(1).settles().saw()[-3:] == [
        "node 0 prints: SIGUSR1 on n1: not suspended, since rank 1 has exited already",
        "node 0 lets its ranks go on",
        "node 1 lets its ranks go on",
    ]
    assert job.saves(6, 0).asked_to_suspend("clusterrun suspend").settles().saw() == [
        "node 0 prints: clusterrun suspend on n0: not suspended, since workers have exited already",
    ]


@pytest.mark.parametrize(("workers", "who"), [(1, "workers have"), (2, "rank 2 has")])
def test_a_request_comes_when_a_rank_has_ended(workers: int, who: str) -> None:
    """Of a node that has ended, or whose other ranks run."""
    job = Job(nodes=2, workers=workers).exits(workers).settles()

    job.asked_to_suspend("SIGUSR1").settles()

    assert f"node 0 prints: SIGUSR1 on n0: not suspended, since {who} exited already" in job.saw()


def test_the_last_rank_ends_while_others_are_asked() -> None:
    """The job has succeeded."""
    job = Job(workers=2).asks(0, 1).settles().asked_to_suspend("SIGUSR1").settles().is_held(4)

    job.settles().exits(0, 1).settles()

    assert job.saw()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_a_cancelled_sigterm_ends_the_job_after_all() -> None:
    """As it would have if no rank had asked."""
    term, other = Job(workers=2).asks(0, 1).settles(), Job(workers=2).asks(0, 1).settles()
    term.signalled(signal.SIGTERM).settles().saw()
    other.asked_to_suspend("SIGUSR1").settles().exits(0).settles().saw()

    assert term.exits(0).settles().saw() == [
        "node 0 prints: SIGTERM: not suspended, since rank 0 has exited already",
        "node 0 lets ranks that have saved end",
        "node 0 lets its ranks go on",
        (
            "node 0 prints: SIGTERM: stopping 1 worker (grace 25 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to rank 1",
    ]
    assert other.signalled(signal.SIGTERM).settles().saw() == [
        "node 0 prints: SIGTERM: not suspended, since workers have exited already",
        (
            "node 0 prints: SIGTERM: stopping 1 worker (grace 25 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to rank 1",
    ]


@pytest.mark.parametrize("is_agreed", [False, True])
def test_a_second_sigterm_ends_the_job_at_once(*, is_agreed: bool) -> None:
    """More than a second later; sooner, it is the same one, sent by two ways."""
    job = Job(workers=2).asks(0, 1).settles().signalled(signal.SIGTERM).settles()
    if is_agreed:
        job.is_held(4).settles()
    job.saw()

    assert job.passes(0.5).signalled(signal.SIGTERM).saw() == []
    assert job.passes(1).signalled(signal.SIGTERM).saw() == [
        "node 0 lets ranks that have saved end",
        "node 0 prints: SIGTERM again: killing 2 workers; exit code 143",
        "node 0 sends SIGKILL to ranks 0-1 and all they started",
    ]
    assert job.dies(0, 1).settles().saw()[-1] == "node 0 ends with 143: it got SIGTERM"


def test_a_second_sigterm_does_not_wait_for_exit_handlers() -> None:
    """All have saved, and one hangs on its way out."""
    job = Job(workers=2).asks(0, 1).settles().signalled(signal.SIGTERM).settles()
    job.is_held(4).settles().saves(4, 0, 1).settles().saw()

    assert job.passes(2).signalled(signal.SIGTERM).saw() == [
        "node 0 sends SIGKILL to ranks 0-1 and all they started",
    ]


def test_exit_handlers_have_the_grace_period() -> None:
    """As at every other end."""
    job = saving().saves(6, 0, 1).settles()
    job.saw()

    assert job.passes(25).saw()[:2] == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]


def test_ctrl_c_ends_a_job_that_is_being_suspended() -> None:
    """In order, as always."""
    job = saving()

    assert job.signalled(signal.SIGINT).saw() == [
        "node 0 lets ranks that have saved end",
        (
            "node 0 prints: interrupted: stopping 1 worker (grace 25 s, a second Ctrl-C kills at once);"
            " exit code 130"
        ),
        "node 0 sends SIGINT to rank 0",
    ]


def test_a_failure_ends_the_agreement() -> None:
    """It is the cause, whatever ranks do then; those that have saved are asked to end, too."""
    job = saving().saves(6, 0).settles()

    assert job.exits(1, code=3).settles().saw() == [
        "node 1 lets ranks that have saved end",
        "node 1 kills what its ranks have left",
        "node 0 lets ranks that have saved end",
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.is_held(7).passes(4).settles().saw() == []
    assert job.exits(0).settles().saw()[-1] == "node 1 ends with 3: rank 1 failed"


def test_a_failure_comes_before_the_last_answer() -> None:
    """No step is agreed on any more."""
    job = Job(nodes=2).asks(0, 1).settles().asked_to_suspend("SIGUSR1").settles()
    job.is_held(4).settles().saw()

    assert job.exits(0, code=3).is_held(6, node=1).settles().saw() == [
        "node 0 lets ranks that have saved end",
        "node 0 kills what its ranks have left",
        "node 1 lets ranks that have saved end",
        "node 1 prints: rank 0 on n0 failed: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
    ]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_request_holds_for_the_next_attempt(*, is_early: bool) -> None:
    """Whether it came before the failure, or when all were stopping; a rank has not asked anew."""
    job = Job(nodes=2, restarts=1).asks(0, 1).settles()
    if is_early:
        job.asked_to_suspend("SIGUSR1").settles().is_held(4).is_held(6, node=1).settles()
    job.exits(1, code=3).settles()
    if not is_early:
        job.asked_to_suspend("SIGUSR1").settles()
    job.dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-4:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 holds its ranks",
        "node 1 starts rank 1, attempt 1",
        "node 1 holds its ranks",
    ]
    assert job.is_held(0).is_held(0, node=1).settles().saw()[1:] == [
        "node 0 lets its ranks go on, to save at step 0",
        "node 1 lets its ranks go on, to save at step 0",
    ]


def test_the_next_attempt_knows_that_ranks_ask() -> None:
    """Sigterm asks there, too, before any rank has; an earlier one does not count."""
    job = Job(nodes=2, restarts=1).asks(0).settles().signalled(signal.SIGTERM).settles()
    job.exits(1, code=3).settles().exits(0).settles()

    assert job.saw()[-1] == "node 1 holds its ranks"
    assert job.passes(2).signalled(signal.SIGTERM).settles().saw() == []


@pytest.mark.parametrize("joins", [False, True])
def test_a_node_in_a_lost_ones_place_knows_that_ranks_ask(*, joins: bool) -> None:
    """Whether it waited when the first one did, or has joined since."""
    job = Job(nodes=2, spares=0 if joins else 1, rejoin=60).asks(0).settles()
    if joins:
        job.joins()
    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles().saw()

    assert job.signalled(signal.SIGTERM, node=2).settles().saw() == [
        "node 0 holds its ranks",
        "node 2 holds its ranks",
    ]


def test_orders_of_another_attempt_are_late() -> None:
    """They change nothing."""
    job = Job(nodes=2, restarts=1).asks(0, 1).settles().asked_to_suspend("SIGUSR1").settles()
    job.is_held(4).is_held(6, node=1).settles().exits(1, code=3).settles().exits(0).settles()
    job.is_held(0).is_held(0, node=1).settles().saw()

    assert job.hears_again(0).hears_again(1).settles().saw() == []


def test_sigterm_while_ranks_are_stopped_is_not_a_request() -> None:
    """It prevents the next attempt."""
    job = Job(nodes=2, restarts=1).asks(0).settles().exits(1, code=3).settles()

    job.signalled(signal.SIGTERM).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_a_lost_node_ends_the_agreement() -> None:
    """It may not have saved."""
    job = saving()

    job.loses_node(1).settles().saves(6, 0).dies(0, by=signal.SIGTERM).settles()

    assert job.saw()[-1] == "node 0 ends with 5: node 1 is gone"


def test_there_is_no_suspension_without_node_0() -> None:
    """The ranks are being stopped already."""
    job = Job(nodes=2).loses_node(0).settles()
    job.saw()

    assert job.asked_to_suspend("SIGUSR1", node=1).settles().saw() == []
