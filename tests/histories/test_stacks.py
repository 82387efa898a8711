"""The stacks of a node's ranks, as its user asks for them or its ranks stand still; they end nothing."""

import signal

from tests.histories.job_history import Job, refused

ASKS = "node 0 asks its ranks for their stacks"


def test_sigquit_on_one_node() -> None:
    """Equal stacks are shown once; a rank that handles no SIGQUIT has none, one that starts may."""
    job = Job(workers=3, starting=[2])

    assert job.signalled(signal.SIGQUIT).settles().saw() == [
        "node 0 prints: SIGQUIT: the Python stacks of 2 workers follow; the job keeps running",
        ASKS,
    ]
    assert job.handles_not(signal.SIGQUIT, 1).shows(0, 2, at="f").settles().saw() == [
        'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in f | rank 1: no handler',
    ]


def test_what_a_rank_prints_on_the_screen_itself_is_not_shown_again() -> None:
    """Of a job on one node; with several nodes, it is shown with the others."""
    one, two = Job(), Job(nodes=2)

    for job in (one, two):
        job.signalled(signal.SIGQUIT).settles().saw()
        job.shows(0, at="f", on_screen=True)

    assert one.settles().saw() == []
    assert two.shows(1, at="f").settles().saw() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in f'
    ]


def test_a_stack_with_control_characters() -> None:
    """A terminal would obey them, and no agent of ours sends any: its sender is lost."""
    job = Job(nodes=2)
    job.signalled(signal.SIGQUIT).settles().saw()

    assert job.shows(1, at="f\x1b[2J").settles().saw()[:2] == [
        refused("Answer"),
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker here",
    ]


def test_a_rank_that_has_exited_is_named() -> None:
    """If it has succeeded: others may wait for it. One that has failed ends the attempt anyway."""
    well, failed = Job(workers=2), Job(workers=2)
    well.exits(1)
    failed.exits(1, code=3)

    for job in (well, failed):
        job.signalled(signal.SIGQUIT).settles().shows(0, at="f").settles()

    shown = 'node 0 shows stacks: rank 0: | File "/train.py", line 7 in f'
    assert well.saw()[-1] == f"{shown} | rank 1: exited with 0"
    assert failed.saw()[-3:] == [
        "node 0 prints: SIGQUIT: the Python stacks of 1 worker follow; the job keeps running",
        ASKS,
        shown,
    ]


def test_no_rank_runs() -> None:
    """Node 0 prints so."""
    job = Job().exits(0, code=1).signalled(signal.SIGQUIT).hears()

    assert job.saw()[-1] == "node 0 shows stacks: no rank is running"


def test_a_node_that_has_lost_node_0_asks_for_no_stacks() -> None:
    """Node 0 would show them."""
    job = Job(nodes=2)
    job.loses_node(0).settles().saw()

    assert job.signalled(signal.SIGQUIT, node=1).settles().saw() == []


def test_the_attempt_ends_before_all_stacks_have_come() -> None:
    """Nothing is shown: the report has the reason."""
    job = Job(nodes=2).signalled(signal.SIGQUIT).settles()
    job.shows(0, at="f").settles().exits(0, 1).settles().passes(4).settles()

    assert not [line for line in job.saw() if "shows stacks" in line]


def test_ranks_are_watched_once_the_last_script_runs() -> None:
    """What imports before that is no hang; without ``--hang-timeout`` they are not watched."""
    job, without = Job(workers=2, starting=[0, 1], finds_hangs=600.0), Job(starting=[0])

    assert job.starts(1).saw() == []
    assert job.starts(0).saw() == ["node 0 watches whether its ranks move"]
    assert without.starts(0).saw() == []
