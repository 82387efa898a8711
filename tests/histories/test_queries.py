"""A user of one node queries the job: which nodes answer, and which are named as missing."""

import signal

from tests.histories.job_history import Job


def test_all_other_nodes_answer_query() -> None:
    """Each answer is forwarded at once, with the asking node's own number."""
    job = Job(nodes=3)

    assert job.queries_ranks(0).settles().new_lines() == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 2 answers a query",
        "node 0 gets node 2's answer to its query 1",
        "node 0 has all answers to its query 1: no node is missing",
    ]
    assert job.freezes(0).queries_ranks(1).settles().new_lines() == [
        "node 2 answers a query",
        "node 1 gets node 2's answer to its query 1",
    ]
    assert job.continues(0).settles().new_lines() == [
        "node 0 answers a query",
        "node 1 gets node 0's answer to its query 1",
        "node 1 has all answers to its query 1: no node is missing",
    ]
    assert job.time_passes(10).settles().new_lines() == []


def test_node_lost_during_query_is_not_waited_for() -> None:
    """It is named once the others have answered."""
    job = Job(nodes=3).freezes(1).freezes(2).queries_ranks()
    job.settles().loses_node(2).settles().new_lines()

    assert job.continues(1).settles().new_lines()[:3] == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 0 has all answers to its query 1: node 2 (n2) is lost: it is gone",
    ]


def test_only_node_asks_no_other() -> None:
    """It has its own answer."""
    assert Job().queries_ranks().settles().new_lines() == [
        "node 0 has all answers to its query 1: no node is missing"
    ]


def test_nodes_that_do_not_answer_are_named() -> None:
    """After a second or so; a late answer is ignored."""
    job = Job(nodes=3).freezes(2).queries_ranks()
    job.settles().new_lines()

    assert job.time_passes(1.1).settles().new_lines() == []
    assert job.time_passes(0.1).settles().new_lines() == [
        "node 0 has all answers to its query 1: node 2 (n2) does not answer",
    ]
    assert job.continues(2).settles().new_lines() == ["node 2 answers a query"]


def test_answer_without_query_is_ignored() -> None:
    """A second answer, or one to no query."""
    job = Job(nodes=3).freezes(2).queries_ranks()
    job.settles().new_lines()

    assert job.answers(1, query=1).answers(1, query=9).settles().new_lines() == []


def test_query_about_one_rank_is_sent_to_its_node() -> None:
    """No other node is asked, or named as missing."""
    job = Job(nodes=3).loses_node(2).settles()
    job.new_lines()

    assert job.queries_ranks(0, rank=1).settles().new_lines() == [
        "node 1 answers a query",
        "node 0 gets node 1's answer to its query 1",
        "node 0 has all answers to its query 1: no node is missing",
    ]


def test_lost_and_paused_nodes_are_named_and_not_waited_for() -> None:
    """Nodes that wait for a rank, and ranks that have not saved, are named as well."""
    job = Job(nodes=4, spares=1).signalled(signal.SIGTSTP, node=3).loses_node(2).settles()
    saving = (
        Job(nodes=1)
        .calls_requested(0)
        .settles()
        .asked_to_suspend("SIGUSR1")
        .settles()
        .holds_ranks(6)
    )
    job.new_lines()
    saving.settles().new_lines()

    assert job.queries_ranks(1).settles().new_lines() == [
        "node 0 answers a query",
        "node 1 gets node 0's answer to its query 1",
        (
            "node 1 has all answers to its query 1: node 2 (n2) is lost: it is gone; node 3 (n3) is paused by its user"
            " (Ctrl-Z); n4 waits for a place"
        ),
    ]
    assert saving.queries_ranks().settles().new_lines() == [
        (
            "node 0 has all answers to its query 1: SIGUSR1: waiting for rank 0 to save; run"
            " clusterrun suspend again to end the job without waiting"
        ),
    ]


def test_queries_are_limited() -> None:
    """They run one after another, with at most eight of each node."""
    job = Job(nodes=6)
    for _ in range(16):
        job.queries_ranks(0)

    # A hundred a second for five nodes.
    job.time_passes(0.009)
    for query in range(1, 9):
        seen = job.settles().new_lines()
        assert seen[::2] == [f"node {node} answers a query" for node in range(1, 6)] + seen[10:]
        assert seen[10:] == [f"node 0 has all answers to its query {query}: no node is missing"]
        job.time_passes(0.01)
    assert job.time_passes(10).settles().new_lines() == []
