"""A job none of whose ranks prints or exits for long: what it shows, and what it does about it."""

import signal

import pytest

from tests.histories.job_history import Job

ASKS = ("node 0 asks its ranks for their stacks", "node 1 asks its ranks for their stacks")


def hangs(on_hang: str = "report", nodes: int = 2, restarts: int = 0) -> Job:
    """Return a job that hangs after 60 s, and has just asked for the stacks."""
    job = Job(nodes=nodes, restarts=restarts, on_hang=on_hang)
    return job.passes(60).stands_still(*range(nodes)).settles()


def told(then: str, seconds: str = "60") -> str:
    return (
        f"node 0 prints: no rank has printed or exited for {seconds} s: the Python stacks of all"
        f" ranks follow; {then}"
    )


def test_all_ranks_of_all_nodes_stand_still() -> None:
    """One node alone is no hang, nor is one whose ranks have moved since."""
    job = Job(nodes=2)

    assert job.stands_still(0).settles().moves(0).stands_still(1).settles().saw() == []
    assert job.stands_still(0).settles().saw() == [told("the job keeps running"), *ASKS]


def test_the_ranks_that_the_others_wait_for_are_named() -> None:
    """With the stacks, once all nodes have sent them; the job keeps running."""
    job = hangs(nodes=3)
    job.saw()

    assert job.shows(0, 2, at="wait").settles().saw() == []
    assert job.shows(1, at="load").settles().saw() == [
        "node 0 prints: the other ranks wait for rank 1",
        (
            "node 0 shows stacks: 2 ranks are in wait at train.py:7; rank 1 is in load at train.py:7"
            ' | ranks 0, 2: | File "/train.py", line 7 in wait'
            ' | rank 1: | File "/train.py", line 7 in load'
        ),
    ]


def test_a_hang_is_reported_once() -> None:
    """Again only after a rank has moved."""
    job = hangs()
    job.shows(0, 1, at="wait").settles().saw()

    assert job.passes(1000).settles().saw() == []
    assert job.moves(1).settles().stands_still(1).settles().saw() == [
        told("the job keeps running"),
        *ASKS,
    ]


def test_a_rank_without_a_stack_may_not_have_begun() -> None:
    """The hang is told again after the same time; one that has exited shows no more."""
    job = hangs()
    job.saw()

    assert job.shows(0, at="wait").shows(1, at="").settles().saw() == [
        "node 0 prints: the other ranks wait for rank 1",
        'node 0 shows stacks: rank 0: | File "/train.py", line 7 in wait | rank 1: no handler',
    ]
    assert job.passes(60).settles().saw() == [told("the job keeps running", "120.1"), *ASKS]
    job.shows(0, at="wait").exits(1).settles()
    assert job.saw()[-1].endswith("in wait | rank 1: exited with 0")
    assert job.passes(1000).settles().saw() == [
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
def test_a_hang_may_stop_all_ranks(on_hang: str, then: str, follows: list[str]) -> None:
    """Once their stacks are shown; that ranks fail as they are stopped is no cause."""
    job = hangs(on_hang, nodes=3, restarts=1)

    assert job.saw()[0] == told(then)
    job.shows(0, 2, at="wait").shows(1, at="load").settles()
    assert job.saw()[2:] == [
        "node 0 prints: no rank has printed or exited for 60 s: stopping 1 worker here",
        "node 0 sends SIGTERM to rank 0",
        "node 1 prints: no rank has printed or exited for 60 s: stopping 1 worker here",
        "node 1 sends SIGTERM to rank 1",
        "node 2 prints: no rank has printed or exited for 60 s: stopping 1 worker here",
        "node 2 sends SIGTERM to rank 2",
    ]
    assert job.exits(0, 1, 2, code=1).settles().saw()[-3:] == follows


def test_restarts_after_a_hang_are_counted() -> None:
    """Without another one the job ends, and node 0 has said so."""
    job = hangs("restart", restarts=1)
    job.shows(0, 1, at="wait").settles().exits(0, 1).settles().saw()

    assert job.stands_still(0, 1).settles().saw()[0] == told("then the job is stopped (--on-hang)")
    assert job.shows(0, 1, at="wait").settles().exits(0, 1).settles().saw()[-1] == (
        "node 1 ends with 7: no rank has moved for 60 s (no restart: no restart is left"
        " (--max-restarts 1))"
    )


def test_a_rank_moves_while_stacks_are_collected() -> None:
    """It was no hang: they are shown, and the job keeps running."""
    job = hangs("stop")
    job.shows(0, at="wait").settles().moves(1).saw()

    assert job.shows(1, at="wait").settles().saw() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]


@pytest.mark.parametrize("on_hang", ["report", "stop"])
def test_a_rank_fails_while_stacks_are_collected(on_hang: str) -> None:
    """Its failure is the reason, and the hang is told no more."""
    job = hangs(on_hang, nodes=3)
    job.shows(0, 2, at="wait").exits(1, code=1).settles()

    assert [line for line in job.saw() if "shows" in line or "wait for" in line] == [
        'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in wait',
    ]
    assert job.passes(30).settles().saw() == [
        "node 0 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 0 sends SIGKILL to rank 0 and all they started",
        "node 2 prints: 1 worker did not exit within 25 s: sending SIGKILL",
        "node 2 sends SIGKILL to rank 2 and all they started",
    ]
    job.dies(0, 2).settles()
    assert job.saw()[-1] == "node 2 ends with 1: rank 1 failed"


def test_a_suspension_has_a_time_limit_of_its_own() -> None:
    """A rank that saves prints nothing; once the suspension is cancelled, the hang counts."""
    job = Job(workers=2, on_hang="stop").asked_to_suspend("SIGTERM").settles()
    job.saw()

    assert job.stands_still(0).settles().saw()[0] == told("the job keeps running")
    assert job.shows(0, 1, at="save").settles().saw()[1:] == []
    job.exits(1).settles().saw()
    assert job.passes(60).settles().saw()[0] == told("then the job is stopped (--on-hang)", "120.1")
    assert "node 0 sends SIGTERM to rank 0" in job.shows(0, at="save").settles().saw()


def test_nodes_that_have_ended_are_not_asked() -> None:
    """A rank that has ended well is waited for as long as its agent is connected."""
    gone, ended = Job(nodes=3), Job(nodes=3)
    gone.exits(1).settles().loses_node(1).settles().saw()
    ended.exits(1).settles().saw()

    assert gone.stands_still(0, 2).settles().saw()[1:] == [
        "node 0 asks its ranks for their stacks",
        "node 2 asks its ranks for their stacks",
    ]
    assert gone.shows(0, 2, at="wait").settles().saw() == [
        (
            'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in wait'
            " | node 1 (n1) is lost: it is gone"
        ),
    ]
    assert ended.stands_still(0, 1, 2).settles().shows(0, 2, at="wait").settles().saw()[-2] == (
        "node 0 prints: the other ranks wait for rank 1, which has exited with code 0"
    )


def test_several_ranks_that_have_exited_are_waited_for() -> None:
    """If one of those waited for runs, the line does not say that they have exited."""
    exited, mixed = (Job(workers=5).exits(1, 2).settles() for _ in range(2))
    for job in (exited, mixed):
        job.stands_still(0).settles().saw()

    exited.shows(0, 3, 4, at="wait")
    mixed.shows(0, 3, at="wait").shows(4, at="load")
    ended = "node 0 prints: the other ranks wait for ranks 1-2, which have exited with code 0"
    assert exited.settles().saw()[0] == ended
    assert mixed.settles().saw()[0] == "node 0 prints: the other ranks wait for ranks 1-2, 4"


def test_sigquit_shows_the_stacks_of_all_nodes() -> None:
    """On node 0, which says who has asked."""
    job = Job(nodes=2)

    assert job.signalled(signal.SIGQUIT, node=1).settles().saw() == [
        "node 1 prints: SIGQUIT: the Python stacks of all ranks follow on node 0; the job keeps running",
        "node 0 prints: SIGQUIT on n1: the Python stacks of all ranks follow; the job keeps running",
        *ASKS,
    ]
    assert job.shows(0, 1, at="wait").settles().saw() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait',
    ]


def test_a_second_sigquit_gets_the_stacks_of_the_first() -> None:
    """As long as these are collected; later ones are collected anew."""
    job = Job(nodes=2)
    job.signalled(signal.SIGQUIT).passes(2).signalled(signal.SIGQUIT).settles()

    assert [line for line in job.saw() if "asks" in line] == [*ASKS]
    assert len(job.shows(0, 1, at="wait").settles().saw()) == 1
    assert job.passes(2).signalled(signal.SIGQUIT).settles().saw()[1:] == [*ASKS]


def test_nodes_that_send_no_stacks_are_named() -> None:
    """After 4 s; at most a screen of them."""
    job = Job(nodes=24)
    job.signalled(signal.SIGQUIT).settles().shows(0, at="wait").settles().saw()

    assert job.passes(3.5).settles().saw() == []
    [shown] = job.passes(0.5).settles().saw()
    assert shown.count(" does not answer") == 20
    assert shown.endswith(" | node 20 (n20) does not answer | 3 more nodes do not answer")


def test_a_node_that_is_lost_meanwhile_sends_no_stacks() -> None:
    """It is named, and not waited for."""
    job = Job(nodes=3).signalled(signal.SIGQUIT).settles().shows(0, at="wait").loses_node(2)
    job.settles().saw()

    assert job.shows(1, at="wait").settles().saw() == [
        (
            'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in wait'
            " | node 2 (n2) is lost: it is gone"
        ),
    ]


def test_an_answer_comes_too_late() -> None:
    """It is none to the next question."""
    job = Job(nodes=2).signalled(signal.SIGQUIT).settles().shows(0, at="wait").passes(4).settles()
    job.saw()

    job.shows(1, at="load").goes_on(1).signalled(signal.SIGQUIT).settles()
    assert job.shows(0, at="wait").settles().saw()[1:] == [*ASKS]
    assert len(job.shows(1, at="load").settles().saw()) == 1


def test_a_hang_is_reported_after_stacks_that_a_user_has_asked_for() -> None:
    """One question at a time."""
    job = Job()
    job.signalled(signal.SIGQUIT).settles().stands_still(0).settles().saw()

    assert job.shows(0, at="wait").settles().passes(0).settles().saw() == [
        'node 0 shows stacks: rank 0: | File "/train.py", line 7 in wait',
        told("the job keeps running", "60.1"),
        "node 0 asks its ranks for their stacks",
    ]


def test_the_next_attempt_begins_without_a_question() -> None:
    """That no rank of the one before moved says nothing of it; agents watch anew."""
    job = Job(nodes=2, restarts=1, finds_hangs=600.0).stands_still(0).signalled(signal.SIGQUIT)
    job.settles().exits(0, code=1).settles().dies(1, by=signal.SIGTERM).settles()

    assert job.saw()[-4:] == [
        "node 0 starts rank 0, attempt 1",
        "node 0 watches whether its ranks move",
        "node 1 starts rank 1, attempt 1",
        "node 1 watches whether its ranks move",
    ]
    assert job.passes(4).stands_still(1).settles().saw() == []
    assert job.signalled(signal.SIGQUIT, node=1).settles().saw()[2:] == [*ASKS]


def test_ranks_that_are_being_stopped_are_not_a_hang() -> None:
    """Their end has a time limit of its own."""
    job, hung = Job(nodes=2, on_hang="stop"), Job(nodes=2, grace=200)
    job.signalled(signal.SIGTERM).settles().saw()
    hung.stands_still(0, 1).settles().shows(0, at="wait").shows(1, at="").settles()
    hung.signalled(signal.SIGTERM).settles().saw()

    assert job.stands_still(0, 1).settles().saw() == hung.passes(100).settles().saw() == []
