"""Ranks print, while no main thread of any rank runs."""

import signal

import pytest

from tests.histories.job_history import Job

TORCH = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
THREADING = "/usr/lib/python3.11/threading.py"

ASKS = ["node 0 asks its ranks for their stacks", "node 1 asks its ranks for their stacks"]
SHOWN = (
    "node 0 shows stacks: ranks 0-1:"
    f' | File "{TORCH}", line 9 in barrier | File "/train.py", line 7 in wait'
)


def hang_notice(seconds: str, then: str = "the job keeps running") -> str:
    return (
        f"node 0 prints: ranks print, but no main thread has run for {seconds} s:"
        f" the Python stacks of all ranks follow; {then}"
    )


def stands(on_hang: str = "report", restarts: int = 0) -> Job:
    """Return a job of two nodes none of whose main threads has run for 67.5 s."""
    job = Job(nodes=2, on_hang=on_hang, restarts=restarts).time_passes(60)
    return job.main_threads_block(0, 1).settles().time_passes(8).settles()


def test_all_main_threads_wait_inside_torch() -> None:
    """The stacks are collected first, without a line; then they are printed, once."""
    job = Job(nodes=2).time_passes(60).main_threads_block(0, 1).settles()

    assert job.time_passes(7).settles().new_lines() == []
    assert job.time_passes(1).settles().new_lines() == ASKS
    assert job.shows_stack(0, 1, at="wait", calls=TORCH).settles().new_lines() == [
        hang_notice("68"),
        SHOWN,
    ]
    assert job.time_passes(1000).settles().new_lines() == []


def test_ranks_that_others_wait_for_are_named() -> None:
    """One main thread inside torch is enough."""
    job = (
        Job(nodes=3).time_passes(60).main_threads_block(0, 1, 2).settles().time_passes(8).settles()
    )
    job.new_lines()

    job.shows_stack(0, 2, at="wait", calls=TORCH).shows_stack(1, at="load").settles()
    assert job.new_lines()[:2] == [
        hang_notice("68"),
        "node 0 prints: the other ranks wait for rank 1",
    ]


@pytest.mark.parametrize("calls", ["", THREADING])
def test_no_main_thread_waits_inside_torch(calls: str) -> None:
    """Ranks may train in another thread: nothing is printed or ended until a main thread has run."""
    job = stands("stop")

    assert job.new_lines() == ASKS
    assert (
        job.shows_stack(0, at="wait", calls=calls).shows_stack(1, at="").settles().new_lines() == []
    )
    assert job.time_passes(1000).settles().new_lines() == []
    job.main_threads_run(1).settles().main_threads_block(1).settles()
    assert job.time_passes(8).settles().new_lines() == ASKS


def test_inconclusive_stacks_do_not_delay_another_sign() -> None:
    """Ranks that stop printing have hung, however recently their main threads were checked."""
    job = stands()
    job.shows_stack(0, 1, at="wait").settles().new_lines()

    assert job.is_idle(0, 1).settles().new_lines() == [
        (
            "node 0 prints: no rank has printed or exited for 60 s: the Python stacks of all ranks"
            " follow; the job keeps running"
        ),
        *ASKS,
    ]


@pytest.mark.parametrize("what", ["one node", "runs again", "moves on", "fails"])
def test_main_thread_runs_again(what: str) -> None:
    """On one node is enough, even while the stacks are collected."""
    job = Job(nodes=2, on_hang="stop").time_passes(60).main_threads_block(0).settles()
    if what != "one node":
        job.main_threads_block(1).settles()
    if what == "runs again":
        job.main_threads_run(0).settles()
    job.time_passes(8).settles().new_lines()
    if what == "moves on":
        job.main_threads_run(0).settles()
    if what == "fails":
        job.exits(0, code=3).settles().new_lines()
        job.shows_stack(1, at="wait", calls=TORCH)
    elif what == "moves on":
        job.shows_stack(0, 1, at="wait", calls=TORCH)

    assert job.settles().time_passes(1).settles().new_lines() == []


@pytest.mark.parametrize(
    ("on_hang", "then", "end"),
    [
        (
            "stop",
            "then the job is stopped (--on-hang)",
            "ends with 7: no main thread has moved for 68 s",
        ),
        ("restart", "then all workers are restarted (--on-hang)", "starts rank 1, attempt 1"),
    ],
)
def test_on_hang_stop_stops_all_ranks(on_hang: str, then: str, end: str) -> None:
    """As after any hang."""
    job = stands(on_hang, restarts=1)
    job.new_lines()

    seen = job.shows_stack(0, 1, at="wait", calls=TORCH).settles().new_lines()
    assert seen[:3] == [
        hang_notice("68", then),
        SHOWN,
        (
            "node 0 prints: ranks print, but no main thread has run for 68 s: stopping 1 worker on this"
            " node"
        ),
    ]
    assert job.exits(0, 1).settles().new_lines()[-1] == f"node 1 {end}"


def test_ranks_stop_printing_as_well() -> None:
    """It is the same hang, and not a second one when a rank prints; nor the reverse."""
    job = Job(nodes=2).time_passes(60).main_threads_block(0, 1).is_idle(0, 1).settles()

    assert job.new_lines()[0].startswith("node 0 prints: no rank has printed or exited for 60 s: ")
    job.shows_stack(0, 1, at="wait", calls=TORCH).settles().new_lines()
    assert job.time_passes(8).moves(0).settles().time_passes(1000).settles().new_lines() == []
    job = stands().shows_stack(0, 1, at="wait", calls=TORCH).settles()
    job.new_lines()
    assert job.is_idle(0, 1).settles().time_passes(1000).settles().new_lines() == []


def test_silence_after_main_thread_has_run() -> None:
    """It is another hang."""
    job = stands().shows_stack(0, 1, at="wait", calls=TORCH).settles().is_idle(0, 1).settles()
    job.new_lines()

    job.main_threads_run(0).settles()
    assert job.time_passes(59).settles().new_lines() == []
    assert job.time_passes(1).settles().new_lines()[1:] == ASKS


def test_silence_on_one_node_is_not_a_hang() -> None:
    """A silent rank may work; its main thread runs."""
    job = Job(nodes=2).time_passes(60).is_idle(0).main_threads_block(1).settles()

    assert job.time_passes(1000).settles().new_lines() == []


def test_user_requests_stacks_meanwhile() -> None:
    """They are printed, whether it is a hang or not."""
    job = stands().signalled(signal.SIGQUIT).settles()
    job.new_lines()

    assert job.shows_stack(0, 1, at="wait").settles().new_lines() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]
    assert job.time_passes(1000).settles().new_lines() == []


def test_no_hang_during_suspension() -> None:
    """A suspension has its own time limit; after it is cancelled the hang counts."""
    job = Job(workers=2, on_hang="stop").time_passes(60).asked_to_suspend("SIGTERM").settles()
    job.main_threads_block(0).settles().time_passes(8).settles().new_lines()

    assert job.shows_stack(0, 1, at="wait", calls=TORCH).settles().new_lines()[0] == hang_notice(
        "68"
    )
    job.exits(1).settles().main_threads_block(0).settles().new_lines()
    then = "then the job is stopped (--on-hang)"
    job.time_passes(61).settles().shows_stack(0, at="wait", calls=TORCH).settles()
    assert hang_notice("129.1", then) in job.new_lines()


def test_hang_is_reported_after_suspension() -> None:
    """What was not done during the suspension is done after it."""
    job = Job(workers=2, on_hang="stop").time_passes(60).asked_to_suspend("SIGTERM").settles()
    job.main_threads_block(0).settles().time_passes(8).settles().shows_stack(
        0, 1, at="wait", calls=TORCH
    )
    job.settles().is_idle(0).settles().shows_stack(0, 1, at="wait", calls=TORCH).settles()
    job.exits(1).settles().new_lines()

    job.time_passes(61).settles().shows_stack(0, at="wait", calls=TORCH).settles()
    seen = job.new_lines()
    assert seen[0].startswith("node 0 prints: no rank has printed or exited for ")
    assert seen[0].endswith("; then the job is stopped (--on-hang)")
    assert "node 0 sends SIGTERM to rank 0" in seen


def test_stopping_ranks_are_not_a_hang() -> None:
    """Stopping has its own time limit."""
    job = stands("stop").signalled(signal.SIGTERM).settles()
    job.new_lines()

    assert job.main_threads_block(0, 1).settles().time_passes(20).settles().new_lines() == []


def test_lost_node_is_not_waited_for() -> None:
    """Its rank has exited before, and its agent is gone."""
    job = Job(nodes=2).exits(1).settles().main_threads_block(1).settles().loses_node(1).settles()
    job.time_passes(60).main_threads_block(0).settles().new_lines()

    assert ASKS[0] in job.time_passes(8).settles().new_lines()
