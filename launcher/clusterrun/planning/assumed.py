"""The world before the nodes have joined."""

from clusterrun.bounds import GlobalRank, NodeRank
from clusterrun.job.job import Job
from clusterrun.job.values import Endpoint
from clusterrun.planning.plan import World

LOOPBACK = "127.0.0.1"
"""MASTER_ADDR of a job on one node."""


def assumed_world(job: Job, workers: int) -> World:
    """Return the world where every node has as many ``workers`` as this one, and the same role.

    Its port is None if one is chosen at the start; its node rank is 0 if that is not known.
    """
    tasks = job.tasks
    node_rank = NodeRank(job.workers.node_rank or 0)
    first = GlobalRank(node_rank * workers) if tasks is None else tasks.rank
    size = job.nnodes * workers if tasks is None else tasks.size
    # If nodes may join late, they keep the master port, and workers get another.
    nodes_keep_port = job.last_call is not None and job.meeting.rdzv_endpoint is None
    return World(
        run_id=job.joining.run_id,
        attempt=0,
        node_rank=node_rank,
        nodes=job.nnodes,
        first_rank=first,
        local_size=workers,
        size=size,
        first_role_rank=first,
        role_size=size,
        master_addr=_address(job),
        master_port=None if nodes_keep_port else job.meeting.master_port,
    )


def _address(job: Job) -> str:
    if job.meeting.master_addr is not None:
        return job.meeting.master_addr
    endpoint = job.meeting.rdzv_endpoint if job.agents > 1 else None
    return LOOPBACK if endpoint is None else Endpoint.parse(endpoint).host
