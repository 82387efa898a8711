"""A user of one node asks about the job: who answers, and who is named as missing."""

import signal

from tests.histories.job_history import Job


def test_all_other_nodes_answer_to_the_one_that_asks() -> None:
    """Each answer is passed on at once, by the asking node's own count of queries."""
    job = Job(nodes=3)

    assert job.asks_about_ranks(0).settles().saw() == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 2 answers a query",
        "node 0 gets node 2's answer to its query 1",
        "node 0 has all answers to its query 1: no node is missing",
    ]
    assert job.freezes(0).asks_about_ranks(1).settles().saw() == [
        "node 2 answers a query",
        "node 1 gets node 2's answer to its query 1",
    ]
    assert job.thaws(0).settles().saw() == [
        "node 0 answers a query",
        "node 1 gets node 0's answer to its query 1",
        "node 1 has all answers to its query 1: no node is missing",
    ]
    assert job.passes(10).settles().saw() == []


def test_a_node_that_is_lost_meanwhile_is_not_awaited() -> None:
    """It is named once the others have answered."""
    job = Job(nodes=3).freezes(1).freezes(2).asks_about_ranks()
    job.settles().loses_node(2).settles().saw()

    assert job.thaws(1).settles().saw()[:3] == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 0 has all answers to its query 1: node 2 (n2) is lost: it is gone",
    ]


def test_the_only_node_asks_no_other() -> None:
    """It has its own answer."""
    assert Job().asks_about_ranks().settles().saw() == [
        "node 0 has all answers to its query 1: no node is missing"
    ]


def test_nodes_that_do_not_answer_are_named() -> None:
    """After a second or so; a late answer counts no more."""
    job = Job(nodes=3).freezes(2).asks_about_ranks()
    job.settles().saw()

    assert job.passes(1.1).settles().saw() == []
    assert job.passes(0.1).settles().saw() == [
        "node 0 has all answers to its query 1: node 2 (n2) does not answer",
    ]
    assert job.thaws(2).settles().saw() == ["node 2 answers a query"]


def test_an_answer_without_a_question_is_dropped() -> None:
    """A second one, or one to no query."""
    job = Job(nodes=3).freezes(2).asks_about_ranks()
    job.settles().saw()

    assert job.answers(1, query=1).answers(1, query=9).settles().saw() == []


def test_a_query_about_one_rank_is_for_its_node() -> None:
    """No other node is asked, or missed."""
    job = Job(nodes=3).loses_node(2).settles()
    job.saw()

    assert job.asks_about_ranks(0, rank=1).settles().saw() == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 0 has all answers to its query 1: no node is missing",
    ]


def test_lost_and_paused_nodes_are_named_and_not_awaited() -> None:
    """So are nodes that wait for a place, and ranks that have not saved."""
    job = Job(nodes=4, spares=1).signalled(signal.SIGTSTP, node=3).loses_node(2).settles()
    saving = Job(nodes=1).asks(0).settles().asked_to_suspend("SIGUSR1").settles().is_held(6)
    job.saw()
    saving.settles().saw()

    assert job.asks_about_ranks(1).settles().saw() == [
        "node 0 answers a query",
        "node 1 gets node 0's answer to its query 1",
        (
            "node 1 has all answers to its query 1: node 2 (n2) is lost: it is gone; node 3 (n3) is paused by its user"
            " (Ctrl-Z); n4 waits for a place"
        ),
    ]
    assert saving.asks_about_ranks().settles().saw() == [
        (
            "node 0 has all answers to its query 1: SIGUSR1: waits for rank 0 to save; clusterrun suspend, typed"
            " again, ends the job without waiting"
        ),
    ]


def test_queries_are_bounded() -> None:
    """However many are asked for: one after the other, and of each node eight at a time."""
    job = Job(nodes=6)
    for _ in range(16):
        job.asks_about_ranks(0)

    # A hundred a second for five nodes.
    job.passes(0.009)
    for query in range(1, 9):
        seen = job.settles().saw()
        assert seen[::2] == [f"node {node} answers a query" for node in range(1, 6)] + seen[10:]
        assert seen[10:] == [f"node 0 has all answers to its query {query}: no node is missing"]
        job.passes(0.01)
    assert job.passes(10).settles().saw() == []
