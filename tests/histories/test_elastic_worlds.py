"""--nnodes MIN:MAX: the number of nodes changes with lost and joining nodes."""

import pytest

from tests.histories.job_history import Job
from tests.histories.worlds import starts, stops


@pytest.mark.parametrize(
    ("least", "most", "nodes", "newcomers", "lost", "places"),
    [
        (1, 4, 4, 0, 3, (0,)),
        (1, 4, 4, 2, 2, (0, 3, 4, 5)),
        (3, 5, 5, 0, 2, (0, 3, 4)),
        (3, 5, 4, 3, 1, (0, 2, 3, 4, 5)),
    ],
)
def test_ranks_of_remaining_nodes_have_no_gap(
    *,
    least: int,
    most: int,
    nodes: int,
    newcomers: int,
    lost: int,
    places: tuple[int, ...],
) -> None:
    """They keep their order, and new nodes come last, up to MAX."""
    job = Job(nodes=nodes, least=least, most=most)
    for _ in range(newcomers):
        job.joins()
    for number in range(1, 1 + lost):
        job.loses_node(number)

    stopped = stops(job, 0, *range(1 + lost, nodes))
    assert [line for line in stopped if "starts" in line] == starts(*places)


def test_too_few_nodes_are_left() -> None:
    """The job ends and prints how many nodes it needs, or it waits for others if --rejoin-timeout is set."""
    job, waits = Job(nodes=3, least=3, most=6), Job(nodes=3, least=3, most=6, rejoin=60)
    for each in (job, waits):
        each.loses_node(1)

    end = "ends with 5: node 1 is gone (no restart: 2 nodes left, and the minimum is 3"
    assert stops(job, 0, 2) == [f"node 0 {end})", f"node 2 {end})"]
    assert stops(waits, 0, 2) == []
    within = f"{end} within 60 s (--rejoin-timeout))"
    assert waits.time_passes(61).settles().new_lines() == [f"node 0 {within}", f"node 2 {within}"]


def test_joining_node_is_told_when_it_participates() -> None:
    """At the next restart, or when a node is lost if the world is full."""
    says = "node 0 prints: n{} (pid 1{}) has joined and {}"
    later, full = Job(nodes=2, least=1, most=4), Job(nodes=2, least=1, most=2)

    assert later.joins().settles().new_lines()[0] == says.format(
        2, 2, "joins when all workers restart"
    )
    assert full.joins().settles().new_lines()[0] == says.format(
        2, 2, "waits to take the place of a lost node"
    )
