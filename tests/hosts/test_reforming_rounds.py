"""Random losses of nodes: one world goes on and finishes, or all agents end and say why."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import Ended, Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import run_of
from tests.hosts.network import Network, network
from tests.hosts.nodes import Nodes
from tests.hosts.reforming_rounds import (
    NODES,
    STEPS,
    TRAINS,
    WORKING,
    Loss,
    Play,
    Round,
    checkpoint,
    drawn,
    overlapping_worlds,
    weights_of,
    wrong_ends,
)
from tests.hosts.test_chaos import explains_failure
from tests.rounds import numbers


@pytest.fixture(scope="module")
def network_of_five(this_run: str) -> Iterator[Network]:
    """Return five hosts, which the rounds use in turn."""
    assert this_run == run_of(os.getpid())
    with network(this_run, "reforming", *(f"n{number}" for number in range(NODES))) as made:
        yield made


@pytest.fixture
def five_hosts(network_of_five: Network) -> Iterator[tuple[Host, ...]]:
    """Return five hosts; all their processes end with the test."""
    yield network_of_five.hosts

    network_of_five.end_all()
    network_of_five.restore()


def test_checker_finds_overlapping_worlds(tmp_path: Path) -> None:
    (tmp_path / "worlds").mkdir()
    (tmp_path / "worlds" / "n0-1").write_text("a 1.0\na 3.0\n")
    (tmp_path / "worlds" / "n1-2").write_text("b 2.0\nb 4.0\n")

    assert len(overlapping_worlds(tmp_path)) == 1


def test_checker_finds_false_messages() -> None:
    round_ = Round("spares", (Loss(0.0, "cut", 3),), saves=False)
    ends = [Ended(0, "", "") for _ in range(NODES)]

    assert wrong_ends(round_, ends) == []
    for wrong in (
        Ended(0, "", "clusterrun: rank 2 on n2 was killed by SIGKILL\n"),
        Ended(0, "", "clusterrun: node 1 (n1) is gone; n3 takes its place\n"),
        Ended(5, "", ""),
    ):
        assert len(wrong_ends(round_, [wrong, *ends[1:]])) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", numbers(60))
def test_random_node_losses(
    number: int, five_hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Never two worlds at once; the weights of an undisturbed run, or a reason on every node."""
    round_ = drawn(number)

    play = Play(round_, Nodes(clusterrun, five_hosts, TRAINS), five_hosts, clusterrun.folder)
    ends = play.ends()

    said = f"{round_}\n" + "\n".join(f"--- node {i}: {end}" for i, end in enumerate(ends))
    assert overlapping_worlds(clusterrun.folder) == [], said
    assert [job.left() for job in play.jobs] == [[]] * len(play.jobs), said
    assert [host.processes() for host in five_hosts] == [[]] * NODES, said
    killed = {it.node for it in round_.losses if it.is_final}
    for node, end in enumerate(ends):
        was_killed = node in killed and end.code == -signal.SIGKILL
        assert was_killed or explains_failure(end), said
    assert wrong_ends(round_, ends) == [], said
    if any(end.code == 0 for end in ends):
        step, weights = checkpoint(clusterrun.folder)
        assert step == STEPS, said
        assert round_.way == "elastic" or weights == weights_of(WORKING[round_.way]), said
