"""No rank of a job prints or exits for long: what is printed, and what --on-hang does."""

import signal

import pytest

from tests.histories.job_history import Job

ASKS = ("node 0 asks its ranks for their stacks", "node 1 asks its ranks for their stacks")


def hangs(on_hang: str = "report", nodes: int = 2, restarts: int = 0) -> Job:
    """Return a job that hangs after 60 s, and has just asked for the stacks."""
    job = Job(nodes=nodes, restarts=restarts, on_hang=on_hang)
    return job.time_passes(60).is_idle(*range(nodes)).settles()


def hang_notice(then: str, seconds: str = "60") -> str:
    return (
        f"node 0 prints: no rank has printed or exited for {seconds} s: the Python stacks of all"
        f" ranks follow; {then}"
    )


def test_idle_ranks_on_all_nodes_are_a_hang() -> None:
    """One idle node is not, nor are ranks that have been active since."""
    job = Job(nodes=2)

    assert job.is_idle(0).settles().moves(0).is_idle(1).settles().new_lines() == []
    assert job.is_idle(0).settles().new_lines() == [hang_notice("the job keeps running"), *ASKS]


def test_ranks_that_others_wait_for_are_named() -> None:
    """With the stacks, once all nodes have sent them; the job keeps running."""
    job = hangs(nodes=3)
    job.new_lines()

    assert job.shows_stack(0, 2, at="wait").settles().new_lines() == []
    assert job.shows_stack(1, at="load").settles().new_lines() == [
        "node 0 prints: the other ranks wait for rank 1",
        (
            "node 0 shows stacks: 2 ranks are in wait at train.py:7; rank 1 is in load at train.py:7"
            ' | ranks 0, 2: | File "/train.py", line 7 in wait'
            ' | rank 1: | File "/train.py", line 7 in load'
        ),
    ]


def test_hang_is_reported_once() -> None:
    """It is reported again only after a rank has been active."""
    job = hangs()
    job.shows_stack(0, 1, at="wait").settles().new_lines()

    assert job.time_passes(1000).settles().new_lines() == []
    assert job.moves(1).settles().is_idle(1).settles().new_lines() == [
        hang_notice("the job keeps running"),
        *ASKS,
    ]


def test_rank_without_stack_may_not_have_started() -> None:
    """The hang is reported again after the same time; a rank that has exited has no stack."""
    job = hangs()
    job.new_lines()

    assert job.shows_stack(0, at="wait").shows_stack(1, at="").settles().new_lines() == [
        "node 0 prints: the other ranks wait for rank 1",
        'node 0 shows stacks: rank 0: | File "/train.py", line 7 in wait | rank 1: no handler',
    ]
    assert job.time_passes(60).settles().new_lines() == [
        hang_notice("the job keeps running", "120.1"),
        *ASKS,
    ]
    job.shows_stack(0, at="wait").exits(1).settles()
    assert job.new_lines()[-1].endswith("in wait | rank 1: exited with 0")
    assert job.time_passes(1000).settles().new_lines() == [
        "node 0 prints: rank 1 exited with code 0 1000 s ago; rank 0 still runs",
        "node 1 prints: all workers of this node have exited; still running: n0",
    ]


@pytest.mark.parametrize(
    ("on_hang", "then", "follows"),
    [
        (
            "stop",
            "then the job is stopped (--on-hang)",
            [
                "node 0 ends with 7: no rank has moved for 60 s, and the others wait for rank 1",
                "node 1 ends with 7: no rank has moved for 60 s, and the others wait for rank 1",
                "node 2 ends with 7: no rank has moved for 60 s, and the others wait for rank 1",
            ],
        ),
        (
            "restart",
            "then all workers are restarted (--on-hang)",
            [f"node {each} starts rank {each}, attempt 1" for each in range(3)],
        ),
    ],
)
def test_on_hang_stop_stops_all_ranks(on_hang: str, then: str, follows: list[str]) -> None:
    """After their stacks are printed; ranks that fail while stopping are not the cause."""
    job = hangs(on_hang, nodes=3, restarts=1)

    assert job.new_lines()[0] == hang_notice(then)
    job.shows_stack(0, 2, at="wait").shows_stack(1, at="load").settles()
    assert job.new_lines()[2:] == [
        "node 0 prints: no rank has printed or exited for 60 s: stopping 1 worker on this node",
        "node 0 sends SIGTERM to rank 0",
        "node 1 prints: no rank has printed or exited for 60 s: stopping 1 worker on this node",
        "node 1 sends SIGTERM to rank 1",
        "node 2 prints: no rank has printed or exited for 60 s: stopping 1 worker on this node",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.exits(0, 1, 2, code=1).settles().new_lines()[-3:] == follows


def test_restarts_after_hang_are_counted() -> None:
    """Without another restart the job ends, and node 0 has printed so."""
    job = hangs("restart", restarts=1)
    job.shows_stack(0, 1, at="wait").settles().exits(0, 1).settles().new_lines()

    assert job.is_idle(0, 1).settles().new_lines()[0] == hang_notice(
        "then the job is stopped (--on-hang)"
    )
    assert job.shows_stack(0, 1, at="wait").settles().exits(0, 1).settles().new_lines()[-1] == (
        "node 1 ends with 7: no rank has moved for 60 s (no restart: no restart is left"
        " (--max-restarts 1))"
    )


def test_rank_is_active_while_stacks_are_collected() -> None:
    """It was not a hang: the stacks are printed, and the job keeps running."""
    job = hangs("stop")
    job.shows_stack(0, at="wait").settles().moves(1).new_lines()

    assert job.shows_stack(1, at="wait").settles().new_lines() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]


@pytest.mark.parametrize("on_hang", ["report", "stop"])
def test_rank_fails_while_stacks_are_collected(on_hang: str) -> None:
    """Its failure is the reason, and the hang is not reported."""
    job = hangs(on_hang, nodes=3)
    job.shows_stack(0, 2, at="wait").exits(1, code=1).settles()

    assert [line for line in job.new_lines() if "shows" in line or "wait for" in line] == [
        'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in wait',
    ]
    assert job.time_passes(30).settles().new_lines() == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to rank 0 and all they started",
        "node 2 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 2 sends SIGKILL to rank 2 and all they started",
    ]
    job.dies(0, 2).settles()
    assert job.new_lines()[-1] == "node 2 ends with 1: rank 1 failed"


def test_no_hang_during_suspension() -> None:
    """A rank prints nothing while it saves; once the suspension is cancelled the hang counts."""
    job = Job(workers=2, on_hang="stop").asked_to_suspend("SIGTERM").settles()
    job.new_lines()

    assert job.is_idle(0).settles().new_lines()[0] == hang_notice("the job keeps running")
    assert job.shows_stack(0, 1, at="save").settles().new_lines()[1:] == []
    job.exits(1).settles().new_lines()
    assert job.time_passes(60).settles().new_lines()[0] == hang_notice(
        "then the job is stopped (--on-hang)", "120.1"
    )
    assert "node 0 sends SIGTERM to rank 0" in job.shows_stack(0, at="save").settles().new_lines()


def test_nodes_that_have_ended_are_not_queried() -> None:
    """A rank that has succeeded may be waited for as long as its agent is connected."""
    gone, ended = Job(nodes=3), Job(nodes=3)
    gone.exits(1).settles().loses_node(1).settles().new_lines()
    ended.exits(1).settles().new_lines()

    assert gone.is_idle(0, 2).settles().new_lines()[1:] == [
        "node 0 asks its ranks for their stacks",
        "node 2 asks its ranks for their stacks",
    ]
    assert gone.shows_stack(0, 2, at="wait").settles().new_lines() == [
        (
            'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in wait'
            " | node 1 (n1) is lost: it is gone"
        ),
    ]
    assert ended.is_idle(0, 1, 2).settles().shows_stack(0, 2, at="wait").settles().new_lines()[
        -2
    ] == ("node 0 prints: the other ranks wait for rank 1, which has exited with code 0")


def test_several_exited_ranks_are_waited_for() -> None:
    """If one of them runs, the line does not say that they have exited."""
    exited, mixed = (Job(workers=5).exits(1, 2).settles() for _ in range(2))
    for job in (exited, mixed):
        job.is_idle(0).settles().new_lines()

    exited.shows_stack(0, 3, 4, at="wait")
    mixed.shows_stack(0, 3, at="wait").shows_stack(4, at="load")
    ended = "node 0 prints: the other ranks wait for ranks 1-2, which have exited with code 0"
    assert exited.settles().new_lines()[0] == ended
    assert mixed.settles().new_lines()[0] == "node 0 prints: the other ranks wait for ranks 1-2, 4"


def test_sigquit_prints_stacks_of_all_nodes() -> None:
    """On node 0, with the node that got the signal."""
    job = Job(nodes=2)

    assert job.signalled(signal.SIGQUIT, node=1).settles().new_lines() == [
        "node 1 prints: SIGQUIT: the Python stacks of all ranks follow on node 0; the job keeps running",
        "node 0 prints: SIGQUIT on n1: the Python stacks of all ranks follow; the job keeps running",
        *ASKS,
    ]
    assert job.shows_stack(0, 1, at="wait").settles().new_lines() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]


def test_second_sigquit_shares_stacks_of_first() -> None:
    """While they are collected; a later one collects them again."""
    job = Job(nodes=2)
    job.signalled(signal.SIGQUIT).time_passes(2).signalled(signal.SIGQUIT).settles()

    assert [line for line in job.new_lines() if "asks" in line] == [*ASKS]
    assert len(job.shows_stack(0, 1, at="wait").settles().new_lines()) == 1
    assert job.time_passes(2).signalled(signal.SIGQUIT).settles().new_lines()[1:] == [*ASKS]


def test_nodes_that_send_no_stacks_are_named() -> None:
    """After 4 s, and at most a screenful of them."""
    job = Job(nodes=24)
    job.signalled(signal.SIGQUIT).settles().shows_stack(0, at="wait").settles().new_lines()

    assert job.time_passes(3.5).settles().new_lines() == []
    [shown] = job.time_passes(0.5).settles().new_lines()
    assert shown.count(" does not answer") == 20
    assert shown.endswith(" | node 20 (n20) does not answer | 3 more nodes do not answer")


def test_node_lost_during_collection_is_named() -> None:
    """It is not waited for."""
    job = Job(nodes=3).signalled(signal.SIGQUIT).settles().shows_stack(0, at="wait").loses_node(2)
    job.settles().new_lines()

    assert job.shows_stack(1, at="wait").settles().new_lines() == [
        (
            'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait'
            " | node 2 (n2) is lost: it is gone"
        ),
    ]


def test_late_stacks_are_ignored() -> None:
    """They do not count for the next query."""
    job = (
        Job(nodes=2)
        .signalled(signal.SIGQUIT)
        .settles()
        .shows_stack(0, at="wait")
        .time_passes(4)
        .settles()
    )
    job.new_lines()

    job.shows_stack(1, at="load").steps(1).signalled(signal.SIGQUIT).settles()
    assert job.shows_stack(0, at="wait").settles().new_lines()[1:] == [*ASKS]
    assert len(job.shows_stack(1, at="load").settles().new_lines()) == 1


def test_hang_is_reported_after_users_stacks() -> None:
    """There is one query at a time."""
    job = Job()
    job.signalled(signal.SIGQUIT).settles().is_idle(0).settles().new_lines()

    assert job.shows_stack(0, at="wait").settles().time_passes(0).settles().new_lines() == [
        'node 0 shows stacks: rank 0: | File "/train.py", line 7 in wait',
        hang_notice("the job keeps running", "60.1"),
        "node 0 asks its ranks for their stacks",
    ]


def test_next_attempt_starts_new_watch() -> None:
    """Idleness in the previous attempt does not count."""
    job = Job(nodes=2, restarts=1, finds_hangs=600.0).is_idle(0).signalled(signal.SIGQUIT)
    job.settles().exits(0, code=1).settles().dies(1, by=signal.SIGTERM).settles()

    assert job.new_lines()[-4:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 watches whether its ranks move",
        "node 1 starts rank 1, attempt 1",
        "node 1 watches whether its ranks move",
    ]
    assert job.time_passes(4).is_idle(1).settles().new_lines() == []
    assert job.signalled(signal.SIGQUIT, node=1).settles().new_lines()[2:] == [*ASKS]


def test_stopping_ranks_are_not_a_hang() -> None:
    """Stopping has its own time limit."""
    job, hung = Job(nodes=2, on_hang="stop"), Job(nodes=2, grace=200)
    job.signalled(signal.SIGTERM).settles().new_lines()
    hung.is_idle(0, 1).settles().shows_stack(0, at="wait").shows_stack(1, at="").settles()
    hung.signalled(signal.SIGTERM).settles().new_lines()

    assert (
        job.is_idle(0, 1).settles().new_lines() == hung.time_passes(100).settles().new_lines() == []
    )
