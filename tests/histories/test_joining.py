"""Nodes join: when the job begins, and what is printed meanwhile."""

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


def test_job_begins_when_last_node_joins() -> None:
    """At once and not earlier; the workers' port is free before any rank starts."""
    job = JoinHistory(nodes=3)

    assert job.joins().time_passes(4).settles().new_lines() == []
    assert job.joins().settles().new_lines() == [
        "node 0 closes the port",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        "node 2 starts rank 2, attempt 0",
    ]


def test_job_of_one_node_begins_at_once() -> None:
    """It is complete."""
    assert JoinHistory(nodes=1).settles().new_lines()[-1] == "node 0 starts rank 0, attempt 0"


def test_rendezvous_endpoint_stays_open() -> None:
    """For the whole job and after its end, so late nodes are refused there and the job continues."""
    job = JoinHistory(endpoint=True)

    assert job.joins().settles().new_lines() == BEGINS_WITH_TWO
    why = "gives up: the job at n0:29500 has all its 2 nodes: n0, n1"
    assert job.joins().settles().new_lines() == [
        "node 0 prints: refused n2 (pid 12) at 10.0.0.2: all 2 nodes have joined",
        f"node 2 {why}",
    ]
    assert (
        job.exits(0, 1).settles().new_lines()[-1] == "node 1 ends with 0: all ranks have succeeded"
    )
    assert f"node 3 {why}" in job.joins().settles().new_lines()


def test_lost_node_0_is_named_by_host() -> None:
    """When it is lost."""
    job = JoinHistory(host="head").joins().settles()
    job.new_lines()

    assert job.loses_node(0).settles().new_lines()[0] == (
        "node 1 prints: node 0 (head) is gone: stopping 1 worker on this node"
    )


def test_silent_connection_delays_complete_job_briefly() -> None:
    """It may be one node too many, or a port scanner: 0.2 s after the last node joined."""
    job, gone = JoinHistory().connects().joins(), JoinHistory().connects().joins()

    assert job.time_passes(0.15).connects().settles().new_lines() == []
    assert job.time_passes(0.06).settles().new_lines()[1:] == [
        "node 0 starts rank 0, attempt 0",
        "node 2 starts rank 1, attempt 0",
    ]
    assert gone.settles().new_lines() == []
    assert gone.disconnects().settles().new_lines()[-1] == "node 2 starts rank 1, attempt 0"


def test_node_that_leaves_is_waited_for_again() -> None:
    """Its scheduler may start it or another one again; a silent node is disconnected."""
    gone, silent = (JoinHistory(nodes=3).joins(rank=1) for _ in range(2))

    gone.loses_node(1).joins(rank=2)
    silent.goes_silent(1).joins(rank=2)

    assert gone.settles().new_lines() == ["node 0 prints: n1 (pid 11) has disconnected"]
    assert silent.settles().new_lines() == ["node 0 prints: n1 (pid 11) has been silent for 18 s"]
    assert silent.continues(1).settles().new_lines() == ["node 1 is disconnected"]
    for job in (gone, silent):
        assert job.joins(rank=1).settles().new_lines()[-3:] == [
            "node 0 starts rank 0, attempt 0",
            "node 2 starts rank 2, attempt 0",
            "node 3 starts rank 1, attempt 0",
        ]


@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_agent_that_connects_twice_is_one_node(order: tuple[int, int], rank: int | None) -> None:
    """The first Hello may be late: the newest connection counts."""
    job = JoinHistory(nodes=3).connects().connects()

    for caller in order:
        job.sends_hello(caller, identity="one", host="n1", rank=rank)
    job.time_passes(1).settles()

    assert job.new_lines()[-1] == "node 1 is disconnected"
    assert job.joins().settles().new_lines()[1:] == [
        "node 0 starts rank 0, attempt 0",
        "node 2 starts rank 1, attempt 0",
        "node 3 starts rank 2, attempt 0",
    ]


def test_node_that_reports_before_begin_is_disconnected() -> None:
    """No correct agent does that. A connection without a Hello is disconnected after a while as well."""
    job = JoinHistory(nodes=3).joins().connects()

    assert job.reports_too_early(1).settles().new_lines() == [
        "node 0 prints: n1 (pid 11) has disconnected",
        "node 1 is disconnected",
    ]
    assert job.goes_silent(2).continues(2).settles().new_lines() == ["node 2 is disconnected"]


def test_signal_to_waiting_node_0_ends_job() -> None:
    """Nodes that have joined are told why, and so is one that connects later."""
    job = JoinHistory(nodes=3).joins()
    why = "gives up: n0 (node 0) got SIGINT while it waited for other nodes"

    assert job.is_interrupted(signal.SIGINT).settles().new_lines() == [
        f"node 0 {why}",
        f"node 1 {why}",
    ]
    assert job.joins().settles().new_lines() == [f"node 2 {why}"]


def test_waiting_notices() -> None:
    """First after 5 s, then every 30 s, on all nodes that have joined; in a large job on node 0."""
    job, large = JoinHistory(nodes=4).joins(), JoinHistory(nodes=9).joins()

    for after, seconds in ((1, 5), (26, 35), (26, 65)):
        text = (
            f"prints: 2 of 4 nodes have joined: n0, n1; waiting for 2 nodes ({seconds} s of 600 s)"
        )
        assert job.time_passes(after).new_lines() == []
        assert job.time_passes(4).settles().new_lines() == [f"node 0 {text}", f"node 1 {text}"]
    assert large.time_passes(6).settles().new_lines() == [
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

    assert job.time_passes(30).settles().new_lines()[0] == (
        f"node 0 prints: {joined.format('have joined')}; waiting for {missing} (30 s of 600 s)"
    )
    assert job.time_passes(570).settles().new_lines()[0] == (
        f"node 0 gives up: {joined.format('joined within 600 s')}; missing: {missing} ({ADVICE})"
    )


def test_leftover_variables_are_named() -> None:
    """While node 0 waits and at the end, because no other node may ever join."""
    job = JoinHistory(exports=("RANK",))

    assert job.time_passes(5).settles().new_lines() == [
        (
            "node 0 prints: 1 of 2 nodes have joined: n0; waiting for 1 node (5 s of 600 s); RANK are"
            " set in the environment: --cluster none ignores them"
        ),
    ]
    assert job.time_passes(595).settles().new_lines() == [
        (
            "node 0 gives up: 1 of 2 nodes joined within 600 s: n0; missing: 1 node (if this is one node:"
            f" RANK are set in the environment: --cluster none ignores them {ADVICE})"
        ),
    ]


def test_long_lists_of_hosts_are_cut() -> None:
    """If there are more than eight names, seven are printed."""
    for nodes, names in ((9, "n0, n1, n2, n3, n4, n5, n6, n7"), (21, "n0, n1, n2, n3, n4, n5, n6")):
        job = JoinHistory(nodes=nodes)
        for _ in range(nodes - 2):
            job.joins()
        others = "" if nodes == 9 else " and 13 more"

        assert job.time_passes(5).settles().new_lines() == [
            (
                f"node 0 prints: {nodes - 1} of {nodes} nodes have joined: {names}{others}; waiting for"
                " 1 node (5 s of 600 s)"
            ),
        ]


def test_missing_node_ends_job_after_timeout() -> None:
    """With the nodes that were refused meanwhile."""
    job = JoinHistory(nodes=3, rdzv_timeout=60).joins(rank=1)
    job.connects().disconnects("10.0.0.9: it has a different token").new_lines()
    text = (
        "gives up: 2 of 3 nodes joined within 60 s: n0, n1; missing: 1 node (refused meanwhile:"
        f" 10.0.0.9: it has a different token {ADVICE})"
    )

    assert "gives up" not in "".join(job.time_passes(59.9).settles().new_lines())
    assert job.time_passes(0.1).settles().new_lines() == [f"node 0 {text}", f"node 1 {text}"]


def test_complete_elastic_job_needs_no_last_call() -> None:
    """With --nnodes MIN:MAX it begins as soon as MAX nodes have joined."""
    job = JoinHistory(nodes=2, least=1)

    assert job.settles().new_lines() == []
    assert job.joins().settles().new_lines() == BEGINS_WITH_TWO


def test_last_call_waits_for_other_nodes() -> None:
    """No further node extends it; a node that connects later waits for a rank."""
    job = JoinHistory(nodes=4, least=2).time_passes(90).settles()
    assert job.new_lines()[-1] == (
        "node 0 prints: 1 of 4 nodes have joined: n0; waiting for 3 nodes (90 s of 600 s)"
    )
    job.time_passes(10)

    assert job.joins().time_passes(20).settles().new_lines()[-1] == (
        "node 1 prints: 2 of 4 nodes have joined: n0, n1; waiting 10 s more for 2 nodes (the minimum"
        " is 2)"
    )
    assert job.joins().time_passes(9.8).settles().new_lines() == []
    assert job.time_passes(0.2).settles().new_lines() == [
        "node 0 prints: starting with 3 of 4 nodes: n0, n1, n2; without 1 node",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        "node 2 starts rank 2, attempt 0",
    ]
    assert job.world_text(2).startswith("node 2 of 3, ranks 2-2 of 3, ")
    assert job.joins().settles().new_lines() == [
        "node 0 prints: n3 (pid 13) has joined and joins when all workers restart",
        "node 3 waits for a place",
    ]


def test_last_call_may_begin_late() -> None:
    """A job with enough nodes never times out; one with too few does, as without a last call."""
    enough, too_few = (
        JoinHistory(nodes=4, least=2, rdzv_timeout=60).time_passes(59) for _ in range(2)
    )

    enough.joins().time_passes(29)
    assert enough.time_passes(1).settles().new_lines()[-1] == "node 1 starts rank 1, attempt 0"
    assert (
        too_few.time_passes(1)
        .settles()
        .new_lines()[-1]
        .startswith("node 0 gives up: 1 of 4 nodes joined within 60 s: n0; missing: 3 nodes (")
    )


def test_node_that_leaves_during_last_call() -> None:
    """With too few nodes the last call ends; the next one takes its whole time."""
    job = (
        JoinHistory(nodes=4, least=2).joins().time_passes(20).loses_node(1).time_passes(20).joins()
    )

    assert "starts" not in "".join(job.time_passes(29.9).settles().new_lines())
    assert job.time_passes(0.1).settles().new_lines()[-1] == "node 2 starts rank 1, attempt 0"


def test_last_call_waits_for_silent_connection() -> None:
    """Briefly, because it may be one of the job's nodes."""
    job = JoinHistory(nodes=2, least=1).time_passes(29.9).connects().time_passes(0.15).settles()
    job.new_lines()

    assert job.time_passes(0.04).settles().new_lines() == []
    assert job.time_passes(0.16).settles().new_lines()[-1] == "node 0 starts rank 0, attempt 0"
