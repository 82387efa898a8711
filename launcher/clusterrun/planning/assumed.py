"""The world before the nodes have joined: for dry runs, and for a process that becomes its worker."""

from msgspec.structs import replace

from clusterrun.domain.endpoint import Endpoint
from clusterrun.domain.facts import Fact
from clusterrun.domain.ranks import GlobalRank, NodeRank
from clusterrun.domain.world import World
from clusterrun.job.job import Job
from clusterrun.ports import hold_free_port, hold_port

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


def lone_worker_world(job: Job) -> World:
    """Return the world of a process that becomes its one worker, without any rendezvous.

    Raises:
        RendezvousError: rank 0's port is in use on this machine, which is rank 0's.

    """
    world = assumed_world(job, 1)
    if job.agents == 1 and world.master_port is None:
        free = hold_free_port()
        free.release()
        return replace(world, master_port=free.number)
    port = world.master_port or job.port_candidates[0]
    if world.first_rank == 0:
        name = "master_port" if world.master_port else "port_candidates"
        hold_port(Fact(port, job.origin(name))).release()
    return replace(world, master_port=port)


def _address(job: Job) -> str:
    if job.meeting.master_addr is not None:
        return job.meeting.master_addr
    endpoint = job.meeting.rdzv_endpoint if job.agents > 1 else None
    return LOOPBACK if endpoint is None else Endpoint.parse(endpoint).host
