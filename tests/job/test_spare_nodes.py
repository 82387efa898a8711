"""Spares: --nnodes counts the nodes that work, a scheduler counts all of them."""

import pytest

from tests.captured import captured
from tests.described import describe, mistake
from tests.job.door import (
    Fact,
    LastCall,
)

pytestmark = pytest.mark.usefixtures("script")

STEP = captured("node.1")
TASK = captured("task.3")


def test_by_hand() -> None:
    """Spares are agents, and have node ranks when they join."""
    flags = {"nnodes": "2", "spares": "1", "node_rank": "2", "master_addr": "node0"}
    job = describe("train.py", flags=flags).job

    assert job.fact("nnodes") == Fact(2, "--nnodes")
    assert (job.agents, job.agent_rank) == (3, 2)
    assert job.outlives_nodes
    assert job.last_call == LastCall(2, 30.0)


@pytest.mark.parametrize("flags", [{"spares": "1"}, {"spares": "1", "nnodes": "1"}])
def test_under_slurm(flags: dict[str, str]) -> None:
    """The step has two nodes: one works. --nnodes may repeat that."""
    resolved = describe("train.py", flags=flags, environ=STEP)

    assert resolved.job.nnodes == resolved.job.fewest_nodes == 1
    assert (resolved.job.agents, resolved.job.agent_rank) == (2, 1)
    assert resolved.job.workers.hosts == ("n0", "n1")
    assert resolved.warnings == ()


def test_with_a_list_of_hosts() -> None:
    """The last ones are spares."""
    flags = {"hosts": "a,b,node7", "spares": "1"}
    job = describe("train.py", flags=flags).job

    assert (job.nnodes, job.agents, job.agent_rank) == (2, 3, 2)


def test_without_spares_a_job_ends_with_its_nodes() -> None:
    """As long as no other option says otherwise."""
    flags = {"nnodes": "2", "node_rank": "1", "master_addr": "node0"}

    assert not describe("train.py", flags=flags).job.outlives_nodes
    assert describe("train.py", flags={**flags, "rejoin_timeout": "60"}).job.outlives_nodes
    assert not describe("train.py", flags={"rejoin_timeout": "60"}).job.outlives_nodes


def test_tasks_are_no_spares() -> None:
    """Each of them is one worker, and nodes have several."""
    message, hint = mistake("train.py", flags={"spares": "1"}, environ=TASK)

    assert message.startswith("spares is 1 (--spares), but each worker is a task of its own")
    assert "srun --ntasks-per-node=1" in hint


def test_more_nodes_than_the_step_has() -> None:
    """Both numbers together contradict the scheduler's."""
    message, _ = mistake("train.py", flags={"nnodes": "2", "spares": "1"}, environ=STEP)

    assert message.startswith("nnodes is 3 (--nnodes and --spares), but the cluster has 2")


@pytest.mark.parametrize(
    ("nnodes", "multiple", "fewest", "is_elastic"),
    [("2:4", "1", 2, True), ("3:4", "2", 4, False), ("1:8", "4", 4, True)],
)
def test_the_minimum_is_a_multiple(
    nnodes: str, multiple: str, fewest: int, *, is_elastic: bool
) -> None:
    """A world of MIN nodes could not be a multiple otherwise."""
    flags = {"nnodes": nnodes, "elastic_multiple": multiple, "rdzv_endpoint": "node0"}
    job = describe("train.py", flags=flags).job

    assert job.fewest_nodes == fewest
    assert job.is_elastic is job.outlives_nodes is is_elastic
