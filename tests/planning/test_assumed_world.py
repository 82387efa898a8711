"""The world that a dry run assumes, before any node has joined."""

import socket

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import RendezvousError
from clusterrun.job.job import TaskLayout
from clusterrun.planning.plan import assumed_world
from clusterrun.run.preview import lone_worker_world

from tests.plans import job

TASK = TaskLayout(
    rank=GlobalRank(5),
    size=6,
    local_rank=LocalRank(0),
    local_size=1,
    node_rank=NodeRank(2),
    nodes=3,
)


def test_one_node() -> None:
    """All is known except the port."""
    world = assumed_world(job(), 4)

    assert (world.node_rank, world.nodes, world.first_rank) == (0, 1, 0)
    assert (world.local_size, world.size) == (4, 4)
    assert (world.master_addr, world.master_port) == ("127.0.0.1", None)


def test_assumed_world_repeats_this_node() -> None:
    """All nodes are assumed to have the same number of workers."""
    world = assumed_world(job(nnodes=3, node_rank=2, master_addr="a", master_port=1), 4)

    assert (world.node_rank, world.first_rank, world.size) == (2, 8, 12)
    assert (world.master_addr, world.master_port) == ("a", 1)


def test_unknown_node_rank_is_shown_as_0() -> None:
    """Rank 0 is assumed."""
    world = assumed_world(job(nnodes=3, rdzv_endpoint="[::1]:29500"), 4)

    assert (world.node_rank, world.first_rank) == (0, 0)
    assert world.master_addr == "::1"


def test_assumed_world_of_a_task() -> None:
    """Nothing is assumed of them: 3, 2 and 1 on three nodes."""
    world = assumed_world(job(nnodes=3, node_rank=2, tasks=TASK, master_addr="a"), 1)

    assert (world.node_rank, world.nodes) == (2, 3)
    assert (world.first_rank, world.local_size, world.size) == (5, 1, 6)


def test_single_worker_gets_a_free_master_port() -> None:
    """As any job on one machine."""
    port = lone_worker_world(job(exec=True)).master_port

    assert port is not None
    with socket.create_server(("", port)):
        pass


def test_tasks_take_the_first_candidate_port() -> None:
    """Nodes do not join, so this world is final."""
    spec = job(exec=True, nnodes=3, tasks=TASK, master_addr="a", port_candidates=(20001, 20002))

    assert lone_worker_world(spec).master_port == 20001


def test_rank_0_rejects_a_port_in_use() -> None:
    """Only node 0 can know."""
    with socket.create_server(("", 0)) as taken:
        spec = job(
            exec=True,
            nnodes=2,
            node_rank=0,
            master_addr="a",
            master_port=taken.getsockname()[1],
        )

        with pytest.raises(RendezvousError) as caught:
            lone_worker_world(spec)

    assert "is in use on this machine by" in caught.value.message
