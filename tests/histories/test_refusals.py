"""Which nodes may not join: of another job, with a mismatch, or left over from an earlier start."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.histories.join_history import JoinHistory

SAME_COMMAND_HINT = "run the same command on every node, each with its own --node-rank"
OWN_RANK = "give each node its own --node-rank"
PLACE = "if these are two jobs, give each its own --master-port"
REPLACED = (
    "gives up: another clusterrun, started later on this host, has replaced this node in the job"
)


@pytest.mark.parametrize(
    ("own", "theirs", "text"),
    [
        ({}, {"must": {"nnodes": "3"}}, f"nnodes is 2 on n0, 3 on n1 ({SAME_COMMAND_HINT})"),
        # The first difference.
        (
            {"must": {"nnodes": "2", "max_restarts": "3", "x": "1"}},
            {"must": {"nnodes": "2", "max_restarts": "0", "x": "2"}},
            f"max_restarts is 3 on n0, 0 on n1 ({SAME_COMMAND_HINT})",
        ),
        (
            {"must": {"version of clusterrun": "0.2.0"}},
            {"must": {"version of clusterrun": "0.2.1"}},
            (
                "version of clusterrun is 0.2.0 on n0, 0.2.1 on n1"
                " (install the same version of clusterrun on every node)"
            ),
        ),
        ({}, {"must": {}}, f"nnodes is 2 on n0, not set on n1 ({SAME_COMMAND_HINT})"),
        (
            {"must": {}},
            {"must": {"nnodes": "2"}},
            f"nnodes is not set on n0, 2 on n1 ({SAME_COMMAND_HINT})",
        ),
        # Long values are shown from where they differ; one may be the beginning of the other.
        (
            {"must": {"x": "a" * 30}},
            {"must": {"x": "a" * 31}},
            f"x is ...{'a' * 20} on n0, ...{'a' * 21} on n1 ({SAME_COMMAND_HINT})",
        ),
        (
            {},
            {"must": {"nnodes": "3"}, "host": "n0"},
            f"nnodes is 2 on n0 (pid 10), 3 on n0 (pid 11) ({SAME_COMMAND_HINT})",
        ),
        (
            {"rank": 0},
            {"rank": 0},
            f"two nodes have node rank 0: n0 (pid 10) and n1 (pid 11) ({OWN_RANK})",
        ),
        (
            {},
            {"rank": 0},
            (
                "n1 (pid 11) has node rank 0, but n0:29500 is an address of n0 (pid 10)"
                " (give --node-rank 0 to the machine that --master-addr names)"
            ),
        ),
        (
            {},
            {"rank": 2},
            f"n1 (pid 11) has node rank 2, but the ranks of 2 nodes are 0-1 ({SAME_COMMAND_HINT})",
        ),
    ],
)
def test_mismatching_node(own: dict[str, Any], theirs: dict[str, Any], text: str) -> None:
    """Without a token any program may connect, so it alone is refused; with a token all nodes end."""
    open_to_all, with_token = (JoinHistory(token=token, **own) for token in (False, True))
    host = theirs.get("host", "n1")
    reason = text.rpartition(" (")[0]

    assert open_to_all.joins(**theirs).settles().new_lines() == [
        f"node 0 prints: refused {host} (pid 11) at 10.0.0.{host[1]}: {reason}",
        f"node 1 gives up: {text}",
    ]
    assert open_to_all.joins().settles().new_lines()[-1] == "node 2 starts rank 1, attempt 0"
    assert with_token.joins(**theirs).settles().new_lines() == [
        f"node 0 gives up: {text}",
        f"node 1 gives up: {text}",
    ]


def test_all_nodes_are_told_of_mismatch() -> None:
    """Those that have joined and those that connect later; node 0 ends once all have been told."""
    job = JoinHistory(nodes=5, token=True).joins(rank=1, host="hostA", pid=12).joins(rank=2)

    text = f"gives up: two nodes have node rank 1: hostA (pid 12) and hostB (pid 34) ({OWN_RANK})"
    assert job.joins(rank=1, host="hostB", pid=34).settles().new_lines() == [
        f"node {node} {text}" for node in range(4)
    ]
    assert not job.all_are_informed
    assert job.joins(rank=3).settles().new_lines() == [f"node 4 {text}"]
    assert job.all_are_informed


def test_one_node_too_many() -> None:
    """It connects before the job begins. Without a token the nodes that came first begin."""
    text = "nnodes is 2, but 3 nodes have connected: n0 (pid 10), n1 (pid 11) and n2 (pid 12)"
    hint = "(start one node fewer, or give a higher --nnodes)"
    open_to_all, with_token = (
        JoinHistory(token=token).connects().connects().sends_hello(1).sends_hello(2)
        for token in (False, True)
    )

    assert open_to_all.time_passes(0).settles().new_lines() == [
        f"node 0 prints: refused n2 (pid 12) at 10.0.0.2: {text}",
        "node 0 closes the port",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        f"node 2 gives up: {text} {hint}",
    ]
    assert with_token.settles().new_lines() == [
        f"node {node} gives up: {text} {hint}" for node in range(3)
    ]


@pytest.mark.parametrize(
    ("own", "theirs", "text", "noted"),
    [
        (
            {"run_id": "mine"},
            {"run_id": "yours"},
            (
                'n0:29500 belongs to another job: its run id is "mine", that of n1 (pid 11) is "yours"'
                f" ({PLACE})"
            ),
            'it belongs to another job, run id "yours"',
        ),
        (
            {},
            {"run_id": "x" * 81},
            (
                'n0:29500 belongs to another job: its run id is "run", that of n1 (pid 11) is'
                f' "{"x" * 77}..." (give all nodes the same --run-id, or none)'
            ),
            f'it belongs to another job, run id "{"x" * 77}..."',
        ),
        (
            {},
            {"user_id": 1001},
            f"n0:29500 belongs to a job of user 1000, n1 (pid 11) runs as user 1001 ({PLACE})",
            "it runs as user 1001, this job as user 1000",
        ),
    ],
)
@pytest.mark.parametrize("token", [True, False])
def test_node_of_other_job_is_refused(
    own: Mapping[str, Any], theirs: dict[str, Any], text: str, noted: str, *, token: bool
) -> None:
    """Its own job may be elsewhere. This one keeps waiting, and prints one line however often it connects."""
    job = JoinHistory(token=token, **own).joins(**theirs)

    job.joins(**theirs, host="n1", pid=11)

    assert job.settles().new_lines() == [
        f"node 0 prints: refused n1 (pid 11) at 10.0.0.1: {noted}",
        f"node 1 calls elsewhere: {text}",
        f"node 2 calls elsewhere: {text}",
    ]
    assert job.joins().settles().new_lines()[-1] == "node 3 starts rank 1, attempt 0"


def test_node_0_of_other_job_is_refused() -> None:
    """It checks that it is the only one, and does not wait for a rank in a job that survives node loss."""
    job = JoinHistory(nodes=2, spares=1, endpoint=True).joins().joins().settles()
    job.new_lines()

    assert job.joins(rank=0).settles().new_lines()[-1] == (
        "node 3 gives up: n3 (pid 13) has node rank 0, but n0:29500 is an address of n0 (pid 10)"
        " (give --node-rank 0 to the machine that --master-addr names)"
    )


def test_node_0_connects_to_itself() -> None:
    """Through the address of a service; it notices, and prints nothing."""
    job = JoinHistory().joins(identity="agent 0", rank=0)

    assert job.settles().new_lines() == ["node 1 has called itself"]
    assert job.joins().settles().new_lines()[-1] == "node 2 starts rank 1, attempt 0"


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize("old_first", [True, False])
@pytest.mark.parametrize("changes", [{"rank": 1}, {"rank": 1, "must": {"nnodes": "4"}}])
def test_agent_of_earlier_start_is_refused(
    changes: dict[str, Any], *, old_first: bool, token: bool
) -> None:
    """It has tried to connect for longer than this job runs; the new agent of its host has joined."""
    job = JoinHistory(nodes=3, token=token).time_passes(2)
    new: dict[str, Any] = {"host": "n1", "pid": 1, "rank": 1, "waited": 3.0}
    old = {"host": "n1", "pid": 2, "rank": 1, "waited": 40.0} | ({} if old_first else changes)

    for says in (old, new) if old_first else (new, old):
        job.joins(**says)

    noted = "another clusterrun, started later on its host, has replaced it in the job"
    assert job.settles().new_lines() == [
        (
            f"node 0 prints: n1 (pid 2) is refused: {noted}"
            if old_first
            else f"node 0 prints: refused n1 (pid 2) at 10.0.0.1: {noted}"
        ),
        f"node {1 if old_first else 2} {REPLACED}",
    ]
    assert job.joins(rank=2).settles().new_lines()[-2:] == [
        f"node {2 if old_first else 1} starts rank 1, attempt 0",
        "node 3 starts rank 2, attempt 0",
    ]


def test_agent_of_earlier_start_is_not_one_node_too_many() -> None:
    """Where nodes send no ranks it is found once the job is complete."""
    job = JoinHistory(nodes=3).time_passes(2).connects()

    job.joins(host="n1", waited=40.0).joins(host="n3", waited=1.0).joins(host="n1", waited=1.0)

    assert job.settles().new_lines()[1:] == [f"node 2 {REPLACED}"]
    assert job.time_passes(1).settles().new_lines()[-2:] == [
        "node 3 starts rank 1, attempt 0",
        "node 4 starts rank 2, attempt 0",
    ]


def test_agent_with_another_rank_is_replaced_only_by_one_without() -> None:
    """Two agents of one host with ranks of their own are both new."""
    ranked, without = (JoinHistory(nodes=3, token=True).time_passes(2).connects() for _ in range(2))

    for job in (ranked, without):
        job.joins(host="n1", rank=1, waited=40.0).joins(host="n2", rank=2, waited=1.0)
    ranked.joins(host="n1", rank=2, waited=1.0)
    without.joins(host="n1", waited=1.0)

    two = "two nodes have node rank 2: n2 (pid 13) and n1 (pid 14)"
    assert ranked.settles().new_lines() == [
        f"node {node} gives up: {two} ({OWN_RANK})" for node in (0, 2, 3, 4)
    ]
    assert without.settles().new_lines()[1:] == [f"node 2 {REPLACED}"]
    assert without.time_passes(1).settles().new_lines()[-2:] == [
        "node 3 starts rank 2, attempt 0",
        "node 4 starts rank 1, attempt 0",
    ]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param({"host": "n1", "waited": 4.0}, id="of one start"),
        pytest.param({"host": "n1", "waited": 1.5}, id="none before node 0"),
        pytest.param({"host": "n2", "waited": 40.0}, id="on two hosts"),
        pytest.param({"host": "n1", "waited": 40.0, "at": "10.0.0.66"}, id="elsewhere"),
    ],
)
def test_two_nodes_of_one_start_are_not_stale(one: dict[str, Any]) -> None:
    """They have the same rank by mistake, or one sends the other's name and gains nothing by that."""
    with_token, open_to_all = (
        JoinHistory(nodes=3, token=token).time_passes(2).joins(rank=1, **one)
        for token in (True, False)
    )

    for job in (with_token, open_to_all):
        job.time_passes(10).settles().new_lines()
        job.joins(rank=1, host="n1", waited=1.0)

    assert [line[:15] for line in with_token.settles().new_lines()] == [
        f"node {node} gives up" for node in range(3)
    ]
    assert open_to_all.joins(rank=2).settles().new_lines()[2:] == [
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        (
            f"node 2 gives up: two nodes have node rank 1: {one['host']} (pid 11) and n1 (pid 12)"
            f" ({OWN_RANK})"
        ),
        "node 3 starts rank 2, attempt 0",
    ]


@pytest.mark.parametrize(
    ("own", "theirs", "differ"),
    [
        (
            {"torch": "2.13", "python": "3.11"},
            {"torch": "2.12", "python": "3.10"},
            "torch on all nodes: 2.13 on n0, 2.12 on n1",
        ),
        # From where they differ.
        (
            {"script": f"{'/folder' * 100}/train.py"},
            {"script": f"{'/folder' * 100}/test.py"},
            "script on all nodes: ...lder/folder/folder/train.py on n0, ...lder/folder/folder/test.py on n1",
        ),
        # Nodes send no more than a digest of them.
        ({"arguments": "0"}, {"arguments": "1"}, "arguments on all nodes: n0 and n1 differ"),
    ],
)
def test_warning_is_printed_once(own: dict[str, str], theirs: dict[str, str], differ: str) -> None:
    """The first difference of the first node that differs; the job begins all the same."""
    job = JoinHistory(nodes=3, should=own).joins(should=theirs).joins(should={"torch": "2.11"})

    assert job.settles().new_lines() == [
        f"node 0 prints: warning: not the same {differ}",
        "node 0 closes the port",
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 1, attempt 0",
        "node 2 starts rank 2, attempt 0",
    ]


def test_port_scanner_causes_few_lines() -> None:
    """However often it connects; one that connects to a running job is named as well."""
    job, runs = JoinHistory(), JoinHistory(endpoint=True).joins().settles()
    runs.new_lines()
    for number in range(100):
        job.connects().disconnects(f"10.0.1.{number}: it does not speak clusterrun's protocol")

    assert job.new_lines() == [
        f"node 0 prints: refused 10.0.1.{number}: it does not speak clusterrun's protocol"
        for number in range(16)
    ]
    assert runs.connects().disconnects(
        "10.0.0.9: it has a different token"
    ).settles().new_lines() == [
        "node 0 prints: refused 10.0.0.9: it has a different token",
    ]
