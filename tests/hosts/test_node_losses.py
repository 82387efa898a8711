"""Random losses of nodes: one world finishes, or all agents end and report why."""

import signal
from pathlib import Path

import pytest

from tests.contract.launched import Ended, Launcher
from tests.hosts.host import Host
from tests.hosts.node_loss_rounds import (
    FIRST_NODES,
    NODES,
    STEPS,
    TRAIN,
    Loss,
    Round,
    RunningRound,
    checkpoint,
    overlapping_worlds,
    random_round,
    weights_of,
    wrong_ends,
)
from tests.hosts.nodes import Nodes, nothing_is_left, outputs
from tests.hosts.test_random_faults import explains_failure
from tests.rounds import numbers


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
@pytest.mark.parametrize("number", numbers(12))
def test_random_node_losses(
    number: int, five_hosts: tuple[Host, ...], clusterrun: Launcher
) -> None:
    """Never two worlds at once; the weights of an undisturbed run, or a reason on every node."""
    round_ = random_round(number)

    nodes = Nodes(clusterrun, five_hosts, TRAIN)
    running = RunningRound(round_, nodes, five_hosts, clusterrun.folder)
    ends = running.results()

    context = outputs(round_, ends)
    assert overlapping_worlds(clusterrun.folder) == [], context
    nothing_is_left(five_hosts, running.jobs)
    killed = {it.node for it in round_.losses if it.is_final}
    for node, end in enumerate(ends):
        was_killed = node in killed and end.code == -signal.SIGKILL
        assert was_killed or explains_failure(end), context
    assert wrong_ends(round_, ends) == [], context
    if any(end.code == 0 for end in ends):
        step, weights = checkpoint(clusterrun.folder)
        assert step == STEPS, context
        assert round_.resilience == "elastic" or weights == weights_of(
            FIRST_NODES[round_.resilience]
        ), context
