"""The coordinator's notices."""

from typing import Any

import pytest

from tests.coordination.door import (
    Interrupted,
    disagreement,
    ended_while_waiting,
    hint_to_nodes_missing,
    listed,
    nodes_missing,
    shortened,
    two_values,
    waiting,
)
from tests.rendezvous.nodes import hello, opened_job
from tests.rendezvous.replay import Replay


def gathered(nodes: int, *, own: dict[str, Any], come: list[dict[str, Any]]) -> Replay:
    """Return a job that some nodes have joined."""
    job = Replay(opened_job(nodes, **own))
    for number, values in enumerate(come, start=1):
        job.joins(number, **values)
    return job


@pytest.mark.parametrize(
    ("own", "come", "expected"),
    [
        ({}, [], ("1 of 4", "n0", "3 nodes")),
        ({"rank": 0}, [], ("1 of 4", "n0", "node ranks 1-3")),
        ({"rank": 0}, [{"rank": 3}, {"rank": 1}], ("3 of 4", "n0, n1, n3", "node rank 2")),
        ({}, [{}, {}], ("3 of 4", "n0, n1, n2", "1 node")),
        (
            {"rank": 0, "hosts": ("a0", "a1", "a2", "a3")},
            [{"rank": 2, "host": "a2"}],
            ("2 of 4", "n0, a2", "a1, a3"),
        ),
        (
            {"hosts": ("n0", "n1", "n2", "n3")},
            [{"host": "n2.cluster.example"}],
            ("2 of 4", "n0, n2.cluster.example", "n1, n3"),
        ),
        (
            {"rank": 0, "hosts": ("n0", "n9")},
            [{"rank": 1, "host": "n0"}],
            ("2 of 4", "n0", "n9"),
        ),
        (
            {"hosts": ("10.0.0.1", "10.0.0.2"), "host": "10.0.0.1"},
            [],
            ("1 of 4", "10.0.0.1", "10.0.0.2"),
        ),
    ],
)
def test_missing_nodes_are_named(
    own: dict[str, Any], come: list[dict[str, Any]], expected: tuple[str, str, str]
) -> None:
    """By host if the scheduler lists the hosts, else by rank, else by their number."""
    renamed = [
        {"host": f"n{values['rank']}", **values} if "rank" in values else values for values in come
    ]
    job = gathered(4, own=own, come=renamed)

    count, joined, missing = expected
    assert nodes_missing(job.state) == (
        f"{count} nodes joined within 600 s: {joined}; missing: {missing}"
    )
    assert waiting(job.state, 30.0) == (
        f"{count} nodes have joined: {joined}; waiting for {missing} (30 s of 600 s)"
    )


def test_long_lists_are_cut() -> None:
    """Two thousand names do not fill the screen."""
    assert listed(f"n{number}" for number in range(8)) == "n0, n1, n2, n3, n4, n5, n6, n7"
    assert listed(f"n{number}" for number in range(20)) == (
        "n0, n1, n2, n3, n4, n5, n6 and 13 more"
    )
    assert listed(["n0", "n0", "n1"]) == "n0, n1"


def test_long_texts_are_cut() -> None:
    """Control characters are removed."""
    assert shortened("ä" * 80) == "ä" * 80
    assert shortened("x" * 81) == "x" * 77 + "..."


def test_long_values_are_shown_from_where_they_differ() -> None:
    """Two scripts deep in the same folder."""
    folder = "/".join(f"folder-{number}" for number in range(100))
    one, other = (
        hello(number, should={"script": f"{folder}/{name}.py"})
        for number, name in enumerate(("train", "test"))
    )

    assert disagreement("script", one, other) == (
        "not the same script on all nodes: ...older-98/folder-99/train.py on n0,"
        " ...older-98/folder-99/test.py on n1"
    )


def test_arguments_that_differ_are_not_shown() -> None:
    """Nodes send only a digest of them."""
    one, other = (hello(number, should={"arguments": f"{number}"}) for number in range(2))

    assert disagreement("arguments", one, other) == (
        "not the same arguments on all nodes: n0 and n1 differ"
    )


def test_one_value_may_be_the_beginning_of_the_other() -> None:
    """Or be missing."""
    short, long = (hello(number, must={"x": "a" * (30 + number)}) for number in range(2))

    assert two_values("x", short, long) == (f"x is ...{'a' * 20} on n0, ...{'a' * 21} on n1")
    assert two_values("x", hello(0, must={}), hello(1, must={"x": "1"})) == (
        "x is not set on n0, 1 on n1"
    )


def test_an_interrupted_node_zero_sends_the_reason() -> None:
    """To the nodes that have joined."""
    assert ended_while_waiting("n0", Interrupted(2)) == (
        "n0 (node 0) got SIGINT while it waited for other nodes"
    )


def test_variables_that_may_be_left_over_are_named() -> None:
    """While waiting and at the timeout, as no other node may ever join."""
    job = gathered(2, own={"exports": "RANK is set: --cluster none ignores it"}, come=[])

    assert waiting(job.state, 5.0).endswith("); RANK is set: --cluster none ignores it")
    assert hint_to_nodes_missing(job.state).splitlines()[0] == (
        "If this is one node: RANK is set: --cluster none ignores it."
    )
