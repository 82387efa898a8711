"""All ranks save at one step and the job ends, or it continues, or ends without."""

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
    job = Job(nodes=2).calls_requested(0)
    if not silent:
        job.calls_requested(1)
    job.settles().asked_to_suspend(by, node=1).settles().holds_ranks(6).holds_ranks(
        6, node=1
    ).settles()
    job.new_lines()
    return job


def test_step_after_the_furthest_rank_is_agreed_on() -> None:
    """All are held first; the step follows the last report, and node 0 prints it."""
    job = Job(nodes=2)
    job.calls_requested(0, 1).settles()

    assert job.asked_to_suspend("SIGUSR1", node=1).settles().new_lines() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert job.holds_ranks(4).settles().new_lines() == []
    assert job.holds_ranks(6, node=1).settles().new_lines() == [*AGREED]


def test_job_is_suspended_once_all_ranks_have_saved() -> None:
    """All nodes end with the exit code that a scheduler knows, whatever exit handlers do."""
    job = Job(nodes=2, workers=2, suspend_code=99)
    job.calls_requested(0, 1, 2, 3).settles().asked_to_suspend("SIGUSR1", node=1).settles()
    job.holds_ranks(6).holds_ranks(6, node=1).settles().new_lines()

    assert job.saves(6, 0, 2, 3).settles().new_lines() == []
    assert job.saves(6, 1).settles().new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
    ]
    assert job.exits(0, 1, 2).exits(3, code=1).settles().new_lines()[-2:] == [
        "node 0 ends with 99: all saved at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 99: all saved at step 6, as SIGUSR1 on n1 asked",
    ]


def test_sigterm_requests_suspension_after_first_call() -> None:
    """Before that, it ends the job."""
    asked, unasked = Job(nodes=2), Job(nodes=2)
    asked.calls_requested(0).settles()

    assert asked.signalled(signal.SIGTERM, node=1).settles().new_lines() == [
        "node 0 holds its ranks",
        "node 1 holds its ranks",
    ]
    assert "node 1 sends SIGTERM to rank 1" in unasked.signalled(signal.SIGTERM, node=1).new_lines()


def test_suspend_signal_requests_suspension_at_any_time() -> None:
    """It is not forwarded; one that reaches all processes arrives twice, and counts once."""
    job = Job(nodes=2, suspend_signal=signal.SIGUSR1)

    job.signalled(signal.SIGUSR1, by_parent=True).time_passes(0.2).signalled(signal.SIGUSR1)

    assert job.settles().new_lines() == ["node 0 holds its ranks", "node 1 holds its ranks"]


def test_second_request_changes_nothing() -> None:
    """From another node, before and after the step is agreed on."""
    job = Job(nodes=2).calls_requested(0, 1).settles().asked_to_suspend("SIGUSR1", node=1).settles()
    job.new_lines()

    assert job.asked_to_suspend("clusterrun suspend").settles().new_lines() == []
    assert job.holds_ranks(4).holds_ranks(6, node=1).settles().new_lines() == [*AGREED]
    assert job.asked_to_suspend("SIGUSR1").holds_ranks(7).settles().new_lines() == []


def test_request_waits_for_first_calls() -> None:
    """All save at their first call, and the grace period begins with it."""
    job = Job(nodes=2)
    job.asked_to_suspend("clusterrun suspend").settles()

    job.holds_ranks(0).holds_ranks(0, node=1).settles()

    assert job.new_lines()[-3:] == [
        (
            "node 0 prints: clusterrun suspend on n0: all ranks save at their first call of"
            " suspend.requested() and end (--suspend-grace 30 s)"
        ),
        "node 0 lets its ranks go on, to save at step 0",
        "node 1 lets its ranks go on, to save at step 0",
    ]
    assert job.time_passes(5).settles().new_lines() == [
        (
            "node 0 prints: clusterrun suspend on n0: waiting for ranks 0-1 to call"
            " suspend.requested() for the first time"
        ),
    ]
    assert (
        job.asked_to_suspend("clusterrun suspend")
        .time_passes(1000)
        .calls_requested(0)
        .settles()
        .new_lines()
        == []
    )
    assert job.time_passes(29.5).settles().new_lines() == []
    assert "node 0 sends SIGTERM to rank 0" in job.time_passes(0.5).settles().new_lines()


def test_ranks_that_do_not_save_are_named_and_stopped() -> None:
    """Named after 5 s, stopped after the grace period; the exit code shows that not all has been saved."""
    job, both = saving(), saving(silent=True)
    job.saves(6, 0).settles()

    again = "run clusterrun suspend again to end the job without waiting"
    late = f"SIGUSR1 on n1: waiting for rank 1 to save; {again}"
    assert job.queries_ranks().time_passes(2).settles().new_lines() == [
        f"node 0 has all answers to its query 1: node 1 (n1) does not answer; {late}",
        "node 1 answers a query",
    ]
    assert job.time_passes(3).settles().new_lines() == [f"node 0 prints: {late}"]
    first = "rank 1 to call suspend.requested() for the first time"
    assert both.time_passes(5).settles().new_lines() == [
        f"node 0 prints: SIGUSR1 on n1: waiting for rank 0 to save and for {first}; {again}",
    ]
    assert job.time_passes(25).settles().new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        (
            "node 1 prints: not all ranks saved within 30 s (SIGUSR1 on n1): stopping 1 worker on this"
            " node"
        ),
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.dies(0, 1, by=signal.SIGTERM).settles().new_lines()[-2:] == [
        "node 0 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
        "node 1 ends with 7: rank 1 did not save at step 6, as SIGUSR1 on n1 asked",
    ]


def test_agent_that_does_not_answer_ends_suspension() -> None:
    """The grace period begins with the request; its ranks are named."""
    job = Job(nodes=2).asked_to_suspend("SIGUSR1").settles().holds_ranks(4).settles()
    job.new_lines()

    assert job.time_passes(29.5).settles().new_lines() == []
    job.time_passes(0.5).settles().exits(0, 1).settles()
    assert (
        job.new_lines()[-1]
        == "node 1 ends with 7: rank 1 did not save at step 4, as SIGUSR1 on n0 asked"
    )


def test_ranks_that_never_call_are_not_waited_for_long() -> None:
    """They may never call; the others have saved."""
    job = saving(silent=True)
    job.saves(6, 0).settles()

    assert job.time_passes(4.5).settles().new_lines() == []
    assert job.time_passes(0.5).settles().new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        "node 1 prints: suspended at step 6 (SIGUSR1 on n1): stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.exits(0).dies(1, by=signal.SIGTERM).settles().new_lines()[-1] == (
        "node 1 ends with 75: all but rank 1 saved at step 6, as SIGUSR1 on n1 asked"
    )


@pytest.mark.parametrize("by", ["SIGUSR1", "clusterrun suspend"])
def test_second_command_ends_wait_for_named_ranks(by: str) -> None:
    """A second clusterrun suspend ends the job at once; a scheduler's second signal does not."""
    job = saving(by)
    job.saves(6, 0).asked_to_suspend("clusterrun suspend").settles().new_lines()

    assert job.time_passes(5).settles().new_lines() == [
        (
            f"node 0 prints: {by} on n1: waiting for rank 1 to save; run clusterrun suspend again"
            " to end the job without waiting"
        ),
    ]
    assert job.asked_to_suspend("SIGUSR1").settles().new_lines() == []
    assert job.asked_to_suspend("clusterrun suspend").settles().new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 1 lets ranks that have saved end",
        (
            f"node 1 prints: not all ranks saved before the second request ({by} on n1): stopping 1"
            " worker on this node"
        ),
        "node 1 sends SIGTERM to rank 1",
    ]
    assert job.exits(0, 1).settles().new_lines()[-1] == (
        f"node 1 ends with 7: rank 1 did not save at step 6 when a second command came, as {by} on n1"
        " asked"
    )


def test_rank_that_succeeds_cancels_suspension() -> None:
    """The others soon will as well; a later request is refused in the same way."""
    job = saving()

    assert job.exits(1).settles().new_lines()[-3:] == [
        "node 0 prints: SIGUSR1 on n1: not suspended, since rank 1 has exited already",
        "node 0 lets its ranks go on",
        "node 1 lets its ranks go on",
    ]
    assert job.saves(6, 0).asked_to_suspend("clusterrun suspend").settles().new_lines() == [
        "node 0 prints: clusterrun suspend on n0: not suspended, since workers have exited already",
    ]


@pytest.mark.parametrize(("workers", "who"), [(1, "workers have"), (2, "rank 2 has")])
def test_request_after_a_rank_has_exited(workers: int, who: str) -> None:
    """On a node that has ended, or whose other ranks run."""
    job = Job(nodes=2, workers=workers).exits(workers).settles()

    job.asked_to_suspend("SIGUSR1").settles()

    assert (
        f"node 0 prints: SIGUSR1 on n0: not suspended, since {who} exited already"
        in job.new_lines()
    )


def test_last_rank_exits_while_others_are_asked() -> None:
    """The job has succeeded."""
    job = (
        Job(workers=2)
        .calls_requested(0, 1)
        .settles()
        .asked_to_suspend("SIGUSR1")
        .settles()
        .holds_ranks(4)
    )

    job.settles().exits(0, 1).settles()

    assert job.new_lines()[-1] == "node 0 ends with 0: all ranks have succeeded"


def test_cancelled_sigterm_ends_job() -> None:
    """As it would have if no rank had called."""
    term, other = (
        Job(workers=2).calls_requested(0, 1).settles(),
        Job(workers=2).calls_requested(0, 1).settles(),
    )
    term.signalled(signal.SIGTERM).settles().new_lines()
    other.asked_to_suspend("SIGUSR1").settles().exits(0).settles().new_lines()

    assert term.exits(0).settles().new_lines() == [
        "node 0 prints: SIGTERM: not suspended, since rank 0 has exited already",
        "node 0 lets ranks that have saved end",
        "node 0 lets its ranks go on",
        (
            "node 0 prints: SIGTERM: stopping 1 worker (grace 25 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to rank 1",
    ]
    assert other.signalled(signal.SIGTERM).settles().new_lines() == [
        "node 0 prints: SIGTERM: not suspended, since workers have exited already",
        (
            "node 0 prints: SIGTERM: stopping 1 worker (grace 25 s, a second SIGTERM kills at once);"
            " exit code 143"
        ),
        "node 0 sends SIGTERM to rank 1",
    ]


@pytest.mark.parametrize("is_agreed", [False, True])
def test_second_sigterm_ends_job_at_once(*, is_agreed: bool) -> None:
    """More than a second later; sooner it is the same one, which arrived twice."""
    job = Job(workers=2).calls_requested(0, 1).settles().signalled(signal.SIGTERM).settles()
    if is_agreed:
        job.holds_ranks(4).settles()
    job.new_lines()

    assert job.time_passes(0.5).signalled(signal.SIGTERM).new_lines() == []
    assert job.time_passes(1).signalled(signal.SIGTERM).new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 0 prints: SIGTERM again: killing 2 workers; exit code 143",
        "node 0 sends SIGKILL to ranks 0-1 and all they started",
    ]
    assert job.dies(0, 1).settles().new_lines()[-1] == "node 0 ends with 143: it got SIGTERM"


def test_second_sigterm_does_not_wait_for_exit_handlers() -> None:
    """All have saved, and one hangs while exiting."""
    job = Job(workers=2).calls_requested(0, 1).settles().signalled(signal.SIGTERM).settles()
    job.holds_ranks(4).settles().saves(4, 0, 1).settles().new_lines()

    assert job.time_passes(2).signalled(signal.SIGTERM).new_lines() == [
        "node 0 sends SIGKILL to ranks 0-1 and all they started",
    ]


def test_exit_handlers_get_the_grace_period() -> None:
    """As at every other end."""
    job = saving().saves(6, 0, 1).settles()
    job.new_lines()

    assert job.time_passes(25).new_lines()[:2] == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to rank 0 and all they started",
    ]


def test_ctrl_c_ends_job_during_suspension() -> None:
    """In order, as always."""
    job = saving()

    assert job.signalled(signal.SIGINT).new_lines() == [
        "node 0 lets ranks that have saved end",
        (
            "node 0 prints: interrupted: stopping 1 worker (grace 25 s, a second Ctrl-C kills at once);"
            " exit code 130"
        ),
        "node 0 sends SIGINT to rank 0",
    ]


def test_failure_ends_suspension() -> None:
    """It is the cause, whatever ranks do then; those that have saved are stopped as well."""
    job = saving().saves(6, 0).settles()

    assert job.exits(1, code=3).settles().new_lines() == [
        "node 1 lets ranks that have saved end",
        "node 1 kills what its ranks have left",
        "node 0 lets ranks that have saved end",
        "node 0 prints: rank 1 on n1 failed: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
    ]
    assert job.holds_ranks(7).time_passes(4).settles().new_lines() == []
    assert job.exits(0).settles().new_lines()[-1] == "node 1 ends with 3: rank 1 failed"


def test_failure_before_last_answer() -> None:
    """No step is agreed on any more."""
    job = Job(nodes=2).calls_requested(0, 1).settles().asked_to_suspend("SIGUSR1").settles()
    job.holds_ranks(4).settles().new_lines()

    assert job.exits(0, code=3).holds_ranks(6, node=1).settles().new_lines() == [
        "node 0 lets ranks that have saved end",
        "node 0 kills what its ranks have left",
        "node 1 lets ranks that have saved end",
        "node 1 prints: rank 0 on n0 failed: stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
    ]


@pytest.mark.parametrize("is_early", [True, False])
def test_request_applies_to_next_attempt(*, is_early: bool) -> None:
    """Whether it came before the failure or while all were stopping; no rank has called again."""
    job = Job(nodes=2, restarts=1).calls_requested(0, 1).settles()
    if is_early:
        job.asked_to_suspend("SIGUSR1").settles().holds_ranks(4).holds_ranks(6, node=1).settles()
    job.exits(1, code=3).settles()
    if not is_early:
        job.asked_to_suspend("SIGUSR1").settles()
    job.dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-4:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 holds its ranks",
        "node 1 starts rank 1, attempt 1",
        "node 1 holds its ranks",
    ]
    assert job.holds_ranks(0).holds_ranks(0, node=1).settles().new_lines()[1:] == [
        "node 0 lets its ranks go on, to save at step 0",
        "node 1 lets its ranks go on, to save at step 0",
    ]


def test_next_attempt_knows_that_ranks_call() -> None:
    """SIGTERM requests a suspension there before any rank has called; an earlier SIGTERM does not count."""
    job = Job(nodes=2, restarts=1).calls_requested(0).settles().signalled(signal.SIGTERM).settles()
    job.exits(1, code=3).settles().exits(0).settles()

    assert job.new_lines()[-1] == "node 1 holds its ranks"
    assert job.time_passes(2).signalled(signal.SIGTERM).settles().new_lines() == []


@pytest.mark.parametrize("joins", [False, True])
def test_replacement_node_knows_that_ranks_call(*, joins: bool) -> None:
    """Whether it waited at the first call or has joined since."""
    job = Job(nodes=2, spares=0 if joins else 1, rejoin=60).calls_requested(0).settles()
    if joins:
        job.joins()
    job.loses_node(1).settles().dies(0, by=signal.SIGTERM).settles().new_lines()

    assert job.signalled(signal.SIGTERM, node=2).settles().new_lines() == [
        "node 0 holds its ranks",
        "node 2 holds its ranks",
    ]


def test_orders_of_another_attempt_are_ignored() -> None:
    """They change nothing."""
    job = (
        Job(nodes=2, restarts=1)
        .calls_requested(0, 1)
        .settles()
        .asked_to_suspend("SIGUSR1")
        .settles()
    )
    job.holds_ranks(4).holds_ranks(6, node=1).settles().exits(1, code=3).settles().exits(
        0
    ).settles()
    job.holds_ranks(0).holds_ranks(0, node=1).settles().new_lines()

    assert job.gets_old_orders(0).gets_old_orders(1).settles().new_lines() == []


def test_sigterm_while_ranks_stop_is_not_a_request() -> None:
    """It prevents the next attempt."""
    job = Job(nodes=2, restarts=1).calls_requested(0).settles().exits(1, code=3).settles()

    job.signalled(signal.SIGTERM).settles().dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-1] == "node 1 ends with 143: it got SIGTERM"


def test_lost_node_ends_suspension() -> None:
    """It may not have saved."""
    job = saving()

    job.loses_node(1).settles().saves(6, 0).dies(0, by=signal.SIGTERM).settles()

    assert job.new_lines()[-1] == "node 0 ends with 5: node 1 is gone"


def test_no_suspension_without_node_0() -> None:
    """The ranks are already stopping."""
    job = Job(nodes=2).loses_node(0).settles()
    job.new_lines()

    assert job.asked_to_suspend("SIGUSR1", node=1).settles().new_lines() == []
