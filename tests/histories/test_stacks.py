"""The stacks of a node's ranks, requested by a user or after a hang; collecting them ends nothing."""

import signal

from tests.histories.job_history import Job, refused

ASKS = "node 0 asks its ranks for their stacks"


def test_sigquit_on_one_node() -> None:
    """Equal stacks are printed once; a rank that does not handle SIGQUIT has none, nor may one that starts."""
    job = Job(workers=3, starting=[2])

    assert job.signalled(signal.SIGQUIT).settles().new_lines() == [
        "node 0 prints: SIGQUIT: the Python stacks of 2 workers follow; the job keeps running",
        ASKS,
    ]
    assert job.lacks_handler(signal.SIGQUIT, 1).shows_stack(0, 2, at="f").settles().new_lines() == [
        'node 0 shows stacks: ranks 0, 2: | File "/train.py", line 7 in f | rank 1: no handler',
    ]


def test_stack_printed_by_the_rank_is_not_repeated() -> None:
    """In a job on one node; with several nodes it is printed with the others."""
    one, two = Job(), Job(nodes=2)

    for job in (one, two):
        job.signalled(signal.SIGQUIT).settles().new_lines()
        job.shows_stack(0, at="f", on_screen=True)

    assert one.settles().new_lines() == []
    assert two.shows_stack(1, at="f").settles().new_lines() == [
        'node 0 shows stacks: ranks 0-1: | File "/train.py", line 7 in f'
    ]


def test_stack_with_control_characters_loses_node() -> None:
    """A terminal would obey them, and no correct agent sends any."""
    job = Job(nodes=2)
    job.signalled(signal.SIGQUIT).settles().new_lines()

    assert job.shows_stack(1, at="f\x1b[2J").settles().new_lines()[:2] == [
        refused("Answer"),
        "node 0 prints: node 1 (n1) is gone: stopping 1 worker on this node",
    ]


def test_exited_rank_is_named() -> None:
    """If it has succeeded, because others may wait for it. A failed one ends the attempt anyway."""
    well, failed = Job(workers=2), Job(workers=2)
    well.exits(1)
    failed.exits(1, code=3)

    for job in (well, failed):
        job.signalled(signal.SIGQUIT).settles().shows_stack(0, at="f").settles()

    shown = 'node 0 shows stacks: rank 0: | File "/train.py", line 7 in f'
    assert well.new_lines()[-1] == f"{shown} | rank 1: exited with 0"
    assert failed.new_lines()[-3:] == [
        "node 0 prints: SIGQUIT: the Python stacks of 1 worker follow; the job keeps running",
        ASKS,
        shown,
    ]


def test_stacks_without_running_rank() -> None:
    """Node 0 prints so."""
    job = Job().exits(0, code=1).signalled(signal.SIGQUIT).delivers_all()

    assert job.new_lines()[-1] == "node 0 shows stacks: no rank is running"


def test_node_without_node_0_collects_no_stacks() -> None:
    """Node 0 would print them."""
    job = Job(nodes=2)
    job.loses_node(0).settles().new_lines()

    assert job.signalled(signal.SIGQUIT, node=1).settles().new_lines() == []


def test_attempt_ends_before_all_stacks_arrive() -> None:
    """Nothing is printed: the report has the reason."""
    job = Job(nodes=2).signalled(signal.SIGQUIT).settles()
    job.shows_stack(0, at="f").settles().exits(0, 1).settles().time_passes(4).settles()

    assert not [line for line in job.new_lines() if "shows stacks" in line]


def test_ranks_are_watched_once_the_last_script_runs() -> None:
    """Imports before that are not a hang; without ``--hang-timeout`` ranks are not watched."""
    job, without = Job(workers=2, starting=[0, 1], finds_hangs=600.0), Job(starting=[0])

    assert job.starts(1).new_lines() == []
    assert job.starts(0).new_lines() == ["node 0 watches whether its ranks move"]
    assert without.starts(0).new_lines() == []
