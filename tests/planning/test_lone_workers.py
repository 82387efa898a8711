"""The world of a worker that replaces its launcher: no node joins."""

import socket

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import RendezvousError
from clusterrun.job.job import TaskLayout
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
