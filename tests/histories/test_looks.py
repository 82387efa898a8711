"""A user of one node looks into the job: who answers, and who is named as missing."""

import signal

from tests.histories.told_job import Job


def test_all_other_nodes_answer_to_the_one_that_asks() -> None:
    """Each answer is passed on at once, by the asking node's own count of looks."""
    job = Job(nodes=3)

    assert job.looks(0).settles().saw() == [
        "node 1 answers a look",
        "node 0 sees node 1 in its look 1",
        "node 2 answers a look",
        "node 0 sees node 2 in its look 1",
        "node 0 ends its look 1: no node is missing",
    ]
    assert job.freezes(0).looks(1).settles().saw() == [
        "node 2 answers a look",
        "node 1 sees node 2 in its look 1",
    ]
    assert job.thaws(0).settles().saw() == [
        "node 0 answers a look",
        "node 1 sees node 0 in its look 1",
        "node 1 ends its look 1: no node is missing",
    ]
    assert job.passes(10).settles().saw() == []


def test_a_node_that_is_lost_meanwhile_is_not_awaited() -> None:
    """It is named once the others have answered."""
    job = Job(nodes=3).freezes(1).freezes(2).looks()
    job.settles().loses_node(2).settles().saw()

    assert job.thaws(1).settles().saw()[:3] == [
        "node 1 answers a look",
        "node 0 sees node 1 in its look 1",
        "node 0 ends its look 1: node 2 (n2) is lost: it is gone",
    ]


def test_the_only_node_asks_no_other() -> None:
    """It has its own answer."""
    assert Job().looks().settles().saw() == ["node 0 ends its look 1: no node is missing"]


def test_nodes_that_do_not_answer_are_named() -> None:
    """After a second or so; a late answer counts no more."""
    job = Job(nodes=3).freezes(2).looks()
    job.settles().saw()

    assert job.passes(1.1).settles().saw() == []
    assert job.passes(0.1).settles().saw() == [
        "node 0 ends its look 1: node 2 (n2) does not answer",
    ]
    assert job.thaws(2).settles().saw() == ["node 2 answers a look"]


def test_an_answer_that_nobody_has_asked_for_is_dropped() -> None:
    """A second one, or one of no look."""
    job = Job(nodes=3).freezes(2).looks()
    job.settles().saw()

    assert job.answers(1, look=1).answers(1, look=9).settles().saw() == []


def test_lost_and_paused_nodes_are_named_and_not_awaited() -> None:
    """So are nodes that wait for a place, and ranks that have not saved."""
    job = Job(nodes=4, spares=1).signalled(signal.SIGTSTP, node=3).loses_node(2).settles()
    saving = Job(nodes=1).asks(0).settles().asked_to_suspend("SIGUSR1").settles().is_held(6)
    job.saw()
    saving.settles().saw()

    assert job.looks(1).settles().saw() == [
        "node 0 answers a look",
        "node 1 sees node 0 in its look 1",
        (
            "node 1 ends its look 1: node 2 (n2) is lost: it is gone; node 3 (n3) is paused by its user"
            " (Ctrl-Z); n4 waits for a place"
        ),
    ]
    assert saving.looks().settles().saw() == [
        (
            "node 0 ends its look 1: SIGUSR1: waits for rank 0 to save; clusterrun suspend, typed"
            " again, ends the job without waiting"
        ),
    ]


def test_looks_are_bounded() -> None:
    """However many are asked for: one after the other, and of each node eight at a time."""
    job = Job(nodes=6)
    for _ in range(16):
        job.looks(0)

    # A hundred a second for five nodes.
    job.passes(0.009)
    for look in range(1, 9):
        seen = job.settles().saw()
        assert seen[::2] == [f"node {node} answers a look" for node in range(1, 6)] + seen[10:]
        assert seen[10:] == [f"node 0 ends its look {look}: no node is missing"]
        job.passes(0.01)
    assert job.passes(10).settles().saw() == []
