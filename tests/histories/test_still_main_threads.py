"""A job whose ranks print, while no main thread of any rank runs."""

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


def told(seconds: str, then: str = "the job keeps running") -> str:
    return (
        f"node 0 prints: ranks print, but no main thread has run for {seconds} s:"
        f" the Python stacks of all ranks follow; {then}"
    )


def stands(on_hang: str = "report", restarts: int = 0) -> Job:
    """Return a job of two nodes none of whose main threads has run for 67.5 s."""
    job = Job(nodes=2, on_hang=on_hang, restarts=restarts).passes(60)
    return job.main_threads_stand(0, 1).settles().passes(8).settles()


def test_all_main_threads_wait_inside_torch() -> None:
    """The stacks are collected first, without a line; then they are shown, once."""
    job = Job(nodes=2).passes(60).main_threads_stand(0, 1).settles()

    assert job.passes(7).settles().saw() == []
    assert job.passes(1).settles().saw() == ASKS
    assert job.shows(0, 1, at="wait", calls=TORCH).settles().saw() == [told("68"), SHOWN]
    assert job.passes(1000).settles().saw() == []


def test_who_is_waited_for_is_named() -> None:
    """One main thread inside torch is enough."""
    job = Job(nodes=3).passes(60).main_threads_stand(0, 1, 2).settles().passes(8).settles()
    job.saw()

    job.shows(0, 2, at="wait", calls=TORCH).shows(1, at="load").settles()
    assert job.saw()[:2] == [
        told("68"),
        "node 0 prints: the other ranks wait for rank 1",
    ]


@pytest.mark.parametrize("calls", ["", THREADING])
def test_no_main_thread_waits_inside_torch(calls: str) -> None:
    """Ranks may train in another thread: nothing is shown or ended until a main thread has run."""
    job = stands("stop")

    assert job.saw() == ASKS
    assert job.shows(0, at="wait", calls=calls).shows(1, at="").settles().saw() == []
    assert job.passes(1000).settles().saw() == []
    job.main_thread_runs(1).settles().main_threads_stand(1).settles()
    assert job.passes(8).settles().saw() == ASKS


def test_stacks_that_showed_nothing_do_not_put_off_another_sign() -> None:
    """Ranks that print no more have hung, however lately their main threads were looked at."""
    job = stands()
    job.shows(0, 1, at="wait").settles().saw()

    assert job.stands_still(0, 1).settles().saw() == [
        (
            "node 0 prints: no rank has printed or exited for 60 s: the Python stacks of all ranks"
            " follow; the job keeps running"
        ),
        *ASKS,
    ]


@pytest.mark.parametrize("what", ["one node", "runs again", "moves on", "fails"])
def test_a_main_thread_runs(what: str) -> None:
    """On one node is enough; also while the stacks are collected."""
    job = Job(nodes=2, on_hang="stop").passes(60).main_threads_stand(0).settles()
    if what != "one node":
        job.main_threads_stand(1).settles()
    if what == "runs again":
        job.main_thread_runs(0).settles()
    job.passes(8).settles().saw()
    if what == "moves on":
        job.main_thread_runs(0).settles()
    if what == "fails":
        job.exits(0, code=3).settles().saw()
        job.shows(1, at="wait", calls=TORCH)
    elif what == "moves on":
        job.shows(0, 1, at="wait", calls=TORCH)

    assert job.settles().passes(1).settles().saw() == []


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
def test_it_may_stop_all_ranks(on_hang: str, then: str, end: str) -> None:
    """As after any hang."""
    job = stands(on_hang, restarts=1)
    job.saw()

    seen = job.shows(0, 1, at="wait", calls=TORCH).settles().saw()
    assert seen[:3] == [
        told("68", then),
        SHOWN,
        "node 0 prints: ranks print, but no main thread has run for 68 s: stopping 1 worker here",
    ]
    assert job.exits(0, 1).settles().saw()[-1] == f"node 1 {end}"


def test_no_rank_prints_either() -> None:
    """That is a hang as before, and no second one when a rank prints; nor the other way round."""
    job = Job(nodes=2).passes(60).main_threads_stand(0, 1).stands_still(0, 1).settles()

    assert job.saw()[0].startswith("node 0 prints: no rank has printed or exited for 60 s: ")
    job.shows(0, 1, at="wait", calls=TORCH).settles().saw()
    assert job.passes(8).moves(0).settles().passes(1000).settles().saw() == []
    job = stands().shows(0, 1, at="wait", calls=TORCH).settles()
    job.saw()
    assert job.stands_still(0, 1).settles().passes(1000).settles().saw() == []


def test_silence_after_a_main_thread_has_run() -> None:
    """It is another hang."""
    job = stands().shows(0, 1, at="wait", calls=TORCH).settles().stands_still(0, 1).settles()
    job.saw()

    job.main_thread_runs(0).settles()
    assert job.passes(59).settles().saw() == []
    assert job.passes(1).settles().saw()[1:] == ASKS


def test_silence_on_one_node_alone() -> None:
    """A silent rank may work; it has a main thread that runs."""
    job = Job(nodes=2).passes(60).stands_still(0).main_threads_stand(1).settles()

    assert job.passes(1000).settles().saw() == []


def test_a_user_asks_for_the_stacks_meanwhile() -> None:
    """They are shown, hang or not."""
    job = stands().signalled(signal.SIGQUIT).settles()
    job.saw()

    assert job.shows(0, 1, at="wait").settles().saw() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]
    assert job.passes(1000).settles().saw() == []


def test_ranks_that_save_do_not_hang() -> None:
    """A suspension has a time limit of its own: the job keeps running; after it is cancelled, it is."""
    job = Job(workers=2, on_hang="stop").passes(60).asked_to_suspend("SIGTERM").settles()
    job.main_threads_stand(0).settles().passes(8).settles().saw()

    assert job.shows(0, 1, at="wait", calls=TORCH).settles().saw()[0] == told("68")
    job.exits(1).settles().main_threads_stand(0).settles().saw()
    then = "then the job is stopped (--on-hang)"
    job.passes(61).settles().shows(0, at="wait", calls=TORCH).settles()
    assert told("129.1", then) in job.saw()


def test_ranks_that_save_and_print_no_more() -> None:
    """What was not done during the suspension is done after it."""
    job = Job(workers=2, on_hang="stop").passes(60).asked_to_suspend("SIGTERM").settles()
    job.main_threads_stand(0).settles().passes(8).settles().shows(0, 1, at="wait", calls=TORCH)
    job.settles().stands_still(0).settles().shows(0, 1, at="wait", calls=TORCH).settles()
    job.exits(1).settles().saw()

    job.passes(61).settles().shows(0, at="wait", calls=TORCH).settles()
    seen = job.saw()
    assert seen[0].startswith("node 0 prints: no rank has printed or exited for ")
    assert seen[0].endswith("; then the job is stopped (--on-hang)")
    assert "node 0 sends SIGTERM to rank 0" in seen


def test_ranks_that_are_being_stopped() -> None:
    """Their end has a time limit of its own."""
    job = stands("stop").signalled(signal.SIGTERM).settles()
    job.saw()

    assert job.main_threads_stand(0, 1).settles().passes(20).settles().saw() == []


def test_a_lost_node_is_not_waited_for() -> None:
    """One that has exited before, and whose agent is gone."""
    job = Job(nodes=2).exits(1).settles().main_threads_stand(1).settles().loses_node(1).settles()
    job.passes(60).main_threads_stand(0).settles().saw()

    assert ASKS[0] in job.passes(8).settles().saw()
