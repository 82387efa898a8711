"""Nodes join: who waits for whom, when the job begins, and what people read meanwhile."""

import signal
from typing import Any

import pytest

from tests.histories.join_history import JoinHistory

ADVICE = (
    "run the same command on every node; each must reach n0:29500 to wait longer, give"
    " --rdzv-timeout SECONDS"
)
BEGINS_WITH_TWO = [
    "node 0 starts rank 0, attempt 0",
    "node 1 starts rank 1, attempt 0",
]


def test_the_job_begins_when_the_last_node_joins() -> None:
    """Not earlier, and at once; before any rank starts, their port is free."""
    job = JoinHistory(nodes=3)

    assert job.joins().passes(4).settles().saw() == []
    assert job.joins().settles().saw() == [
        "node 0 closes the port",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        "node 2 starts rank 2, attempt 0",
    ]


def test_a_job_of_one_node_does_not_wait() -> None:
    """It is complete."""
    assert JoinHistory(nodes=1).settles().saw()[-1] == "node 0 starts rank 0, attempt 0"


def test_an_endpoint_stays_open() -> None:
    """For the whole job: late nodes are refused there, and the job goes on; after its end, too."""
    job = JoinHistory(endpoint=True)

    assert job.joins().settles().saw() == BEGINS_WITH_TWO
    why = "gives up: the job at n0:29500 has all its 2 nodes: n0, n1"
    assert job.joins().settles().saw() == [
        "node 0 prints: refused n2 (pid 12) at 10.0.0.2: all 2 nodes have joined",
        f"node 2 {why}",
    ]
    assert job.exits(0, 1).settles().saw()[-1] == "node 1 ends with 0: all ranks have succeeded"
    assert f"node 3 {why}" in job.joins().settles().saw()


def test_node_0_is_known_by_its_host() -> None:
    """When it is lost."""
    job = JoinHistory(host="head").joins().settles()
    job.saw()

    assert job.loses_node(0).settles().saw()[0] == (
        "node 1 prints: node 0 (head) is gone: stopping 1 worker here"
    )


def test_a_silent_caller_holds_a_complete_job_up_for_a_moment() -> None:
    """It may be one node too many, or a port scanner: a fifth of a second from the last node on."""
    job, gone = JoinHistory().connects().joins(), JoinHistory().connects().joins()

    assert job.passes(0.15).connects().settles().saw() == []
    assert job.passes(0.06).settles().saw()[1:] == [
        "node 0 starts rank 0, attempt 0",
        "node 2 starts rank 1, attempt 0",
    ]
    assert gone.settles().saw() == []
    assert gone.hangs_up().settles().saw()[-1] == "node 2 starts rank 1, attempt 0"


def test_a_node_that_leaves_is_awaited_again() -> None:
    """Its scheduler may start it again, or another one in its place; a silent one is disconnected."""
    gone, silent = (JoinHistory(nodes=3).joins(rank=1) for _ in range(2))

    gone.loses_node(1).joins(rank=2)
    silent.misses(1).joins(rank=2)

    assert gone.settles().saw() == ["node 0 prints: n1 (pid 11) has disconnected"]
    assert silent.settles().saw() == ["node 0 prints: n1 (pid 11) has been silent for 18 s"]
    assert silent.thaws(1).settles().saw() == ["node 1 is disconnected"]
    for job in (gone, silent):
        assert job.joins(rank=1).settles().saw()[-3:] == [
            "node 0 starts rank 0, attempt 0",
            "node 2 starts rank 2, attempt 0",
            "node 3 starts rank 1, attempt 0",
        ]


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_an_agent_that_calls_twice_is_one_node(order: tuple[int, int], rank: int | None) -> None:
    """What it says first may be late: it counts where it has connected last."""
    job = JoinHistory(nodes=3).connects().connects()

    for caller in order:
        job.introduces_itself(caller, identity="one", host="n1", rank=rank)
    job.passes(1).settles()

    assert job.saw()[-1] == "node 1 is disconnected"
    assert job.joins().settles().saw()[1:] == [
        "node 0 starts rank 0, attempt 0",
        "node 2 starts rank 1, attempt 0",
        "node 3 starts rank 2, attempt 0",
    ]


def test_a_node_that_reports_an_end_before_the_begin_is_disconnected() -> None:
    """It is no agent of ours; so is a caller that has said nothing for too long."""
    job = JoinHistory(nodes=3).joins().connects()

    assert job.reports_too_early(1).settles().saw() == [
        "node 0 prints: n1 (pid 11) has disconnected",
        "node 1 is disconnected",
    ]
    assert job.misses(2).thaws(2).settles().saw() == ["node 2 is disconnected"]


def test_node_0_may_end_while_it_waits() -> None:
    """Nodes that have joined hear why; one that calls later, too."""
    job = JoinHistory(nodes=3).joins()
    why = "gives up: n0 (node 0) got SIGINT while it waited for other nodes"

    assert job.is_interrupted(signal.SIGINT).settles().saw() == [f"node 0 {why}", f"node 1 {why}"]
    assert job.joins().settles().saw() == [f"node 2 {why}"]


def test_waiting_is_visible() -> None:
    """First after 5 s, then each 30 s, on all nodes that have joined; in a large job on node 0."""
    job, large = JoinHistory(nodes=4).joins(), JoinHistory(nodes=9).joins()

    for after, seconds in ((1, 5), (26, 35), (26, 65)):
        text = (
            f"prints: 2 of 4 nodes have joined: n0, n1; waiting for 2 nodes ({seconds} s of 600 s)"
        )
        assert job.passes(after).saw() == []
        assert job.passes(4).settles().saw() == [f"node 0 {text}", f"node 1 {text}"]
    assert large.passes(6).settles().saw() == [
        "node 0 prints: 2 of 9 nodes have joined: n0, n1; waiting for 7 nodes (6 s of 600 s)",
    ]


@pytest.mark.parametrize(
    ("own", "others", "joined", "missing"),
    [
        ({}, [], "1 of 4 nodes {}: n0", "3 nodes"),
        ({"rank": 0}, [], "1 of 4 nodes {}: n0", "node ranks 1-3"),
        (
            {"rank": 0},
            [{"rank": 3, "host": "n3"}, {"rank": 1}],
            "3 of 4 nodes {}: n0, n2, n3",
            "node rank 2",
        ),
        ({}, [{}, {}], "3 of 4 nodes {}: n0, n1, n2", "1 node"),
        (
            {"rank": 0, "hosts": ("a0", "a1", "a2", "a3")},
            [{"rank": 2, "host": "a2"}],
            "2 of 4 nodes {}: n0, a2",
            "a1, a3",
        ),
        (
            {"hosts": ("n0", "n1", "n2", "n3")},
            [{"host": "n2.cluster.example"}],
            "2 of 4 nodes {}: n0, n2.cluster.example",
            "n1, n3",
        ),
        # Several nodes of one host.
        (
            {"rank": 0, "hosts": ("n0", "n9")},
            [{"rank": 1, "host": "n0"}],
            "2 of 4 nodes {}: n0",
            "n9",
        ),
        (
            {"hosts": ("10.0.0.1", "10.0.0.2"), "host": "10.0.0.1"},
            [],
            "1 of 4 nodes {}: 10.0.0.1",
            "10.0.0.2",
        ),
    ],
)
def test_missing_nodes_are_named(
    own: dict[str, Any], others: list[dict[str, Any]], joined: str, missing: str
) -> None:
    """By host if the scheduler lists the hosts, else by rank, else by their number."""
    job = JoinHistory(nodes=4, **own)
    for says in others:
        job.joins(**says)

    assert job.passes(30).settles().saw()[0] == (
        f"node 0 prints: {joined.format('have joined')}; waiting for {missing} (30 s of 600 s)"
    )
    assert job.passes(570).settles().saw()[0] == (
        f"node 0 gives up: {joined.format('joined within 600 s')}; missing: {missing} ({ADVICE})"
    )


def test_variables_that_may_be_left_over_are_named() -> None:
    """While node 0 waits and at the end: no other node may ever join."""
    job = JoinHistory(exports=("RANK",))

    assert job.passes(5).settles().saw() == [
        (
            "node 0 prints: 1 of 2 nodes have joined: n0; waiting for 1 node (5 s of 600 s); RANK are"
            " set in the environment: --cluster none ignores them"
        ),
    ]
    assert job.passes(595).settles().saw() == [
        (
            "node 0 gives up: 1 of 2 nodes joined within 600 s: n0; missing: 1 node (if this is one node:"
            f" RANK are set in the environment: --cluster none ignores them {ADVICE})"
        ),
    ]


def test_long_lists_of_hosts_are_cut() -> None:
    """Two thousand names do not fill the screen: with more than eight, seven are named."""
    for nodes, names in ((9, "n0, n1, n2, n3, n4, n5, n6, n7"), (21, "n0, n1, n2, n3, n4, n5, n6")):
        job = JoinHistory(nodes=nodes)
        for _ in range(nodes - 2):
            job.joins()
        others = "" if nodes == 9 else " and 13 more"

        assert job.passes(5).settles().saw() == [
            (
                f"node 0 prints: {nodes - 1} of {nodes} nodes have joined: {names}{others}; waiting for"
                " 1 node (5 s of 600 s)"
            ),
        ]


def test_a_node_that_stays_away_ends_the_job_for_the_others() -> None:
    """When the time is over, with who was refused meanwhile."""
    job = JoinHistory(nodes=3, rdzv_timeout=60).joins(rank=1)
    job.connects().hangs_up("10.0.0.9: it has a different token").saw()
    text = (
        "gives up: 2 of 3 nodes joined within 60 s: n0, n1; missing: 1 node (refused meanwhile:"
        f" 10.0.0.9: it has a different token {ADVICE})"
    )

    assert "gives up" not in "".join(job.passes(59.9).settles().saw())
    assert job.passes(0.1).settles().saw() == [f"node 0 {text}", f"node 1 {text}"]


def test_all_of_an_elastic_job_need_no_last_call() -> None:
    """--nnodes MIN:MAX: as soon as MAX nodes have joined, it begins."""
    job = JoinHistory(nodes=2, least=1)

    assert job.settles().saw() == []
    assert job.joins().settles().saw() == BEGINS_WITH_TWO


def test_enough_nodes_wait_for_the_others() -> None:
    """For the last call, which no other node prolongs; who comes later waits for a place."""
    job = JoinHistory(nodes=4, least=2).passes(90).settles()
    assert job.saw()[-1] == (
        "node 0 prints: 1 of 4 nodes have joined: n0; waiting for 3 nodes (90 s of 600 s)"
    )
    job.passes(10)

    assert job.joins().passes(20).settles().saw()[-1] == (
        "node 1 prints: 2 of 4 nodes have joined: n0, n1; waiting 10 s more for 2 nodes (the minimum"
        " is 2)"
    )
    assert job.joins().passes(9.8).settles().saw() == []
    assert job.passes(0.2).settles().saw() == [
        "node 0 prints: starting with 3 of 4 nodes: n0, n1, n2; without 1 node",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        "node 2 starts rank 2, attempt 0",
    ]
    assert job.part(2).startswith("node 2 of 3, ranks 2-2 of 3, ")
    assert job.joins().settles().saw() == [
        "node 0 prints: n3 (pid 13) has joined and joins when all workers restart",
        "node 3 waits for a place",
    ]


def test_a_last_call_may_begin_late() -> None:
    """Enough nodes are never given up; too few are, as without a last call."""
    enough, too_few = (JoinHistory(nodes=4, least=2, rdzv_timeout=60).passes(59) for _ in range(2))

    enough.joins().passes(29)
    assert enough.passes(1).settles().saw()[-1] == "node 1 starts rank 1, attempt 0"
    assert (
        too_few.passes(1)
        .settles()
        .saw()[-1]
        .startswith("node 0 gives up: 1 of 4 nodes joined within 60 s: n0; missing: 3 nodes (")
    )


def test_who_leaves_during_the_last_call_is_missed() -> None:
    """With too few nodes it is over; the next one takes its whole time."""
    job = JoinHistory(nodes=4, least=2).joins().passes(20).loses_node(1).passes(20).joins()

    assert "starts" not in "".join(job.passes(29.9).settles().saw())
    assert job.passes(0.1).settles().saw()[-1] == "node 2 starts rank 1, attempt 0"


def test_the_last_call_waits_for_a_silent_connection() -> None:
    """For a moment: it may be one of the job's nodes."""
    job = JoinHistory(nodes=2, least=1).passes(29.9).connects().passes(0.15).settles()
    job.saw()

    assert job.passes(0.04).settles().saw() == []
    assert job.passes(0.16).settles().saw()[-1] == "node 0 starts rank 0, attempt 0"
