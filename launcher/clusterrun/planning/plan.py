"""The world of one attempt, and one node's plan in it: what ``--dry-run`` prints and the workers get."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from clusterrun.bounds import (
    COUNTED,
    Count,
    GlobalRank,
    Line,
    LocalRank,
    Name,
    NodeRank,
    Port,
    RunId,
    Size,
    named_ranks,
)
from clusterrun.cpuset import CpuSet
from clusterrun.job.job import Job
from clusterrun.job.values import LOOPBACK, Endpoint
from clusterrun.machine.machine import Gpu


class World(Struct, frozen=True):
    """One node's view of the whole job in one attempt."""

    run_id: Annotated[RunId, Meta(min_length=1)]
    """Node 0's name for the job, the same on all nodes: TORCHELASTIC_RUN_ID."""
    attempt: Count
    """Number of the attempt, from 0: TORCHELASTIC_RESTART_COUNT."""
    node_rank: Annotated[NodeRank, COUNTED]
    nodes: Size
    first_rank: Annotated[GlobalRank, COUNTED]
    """Global rank of this node's local rank 0: the sum of the workers of all nodes before."""
    local_size: Size
    size: Size
    first_role_rank: Annotated[GlobalRank, COUNTED]
    """As ``first_rank``, counted among the nodes of this node's role alone."""
    role_size: Size
    """Workers of this role on all nodes."""
    master_addr: Line
    master_port: Port | None
    """None only in a dry run, if a free port would be chosen at the start."""
    kept_attempts: Count = 0
    """Attempts of earlier jobs of this run, before which a suspension came: log folders go on."""
    interface: Name = ""
    """The network interface that libraries are to use; "" if they find it themselves."""


class MemoryPolicy(Struct, frozen=True):
    """The NUMA nodes that a worker's memory comes from."""

    mode: str
    """``preferred`` or ``bind``, as --numa-memory has them."""
    nodes: tuple[int, ...] = field(name="numa_nodes")
    """At least one; each has CPUs, and memory that this job may use."""

    def __str__(self) -> str:
        return f"{self.mode} {','.join(map(str, self.nodes))}"


class WorkerPlan(Struct, frozen=True):
    """One worker: its ranks, its place, and the variables that only it gets."""

    rank: GlobalRank
    local_rank: LocalRank
    """Its index among the workers that this agent starts; LOCAL_RANK differs only in a scheduler's tasks."""
    gpus: tuple[Gpu, ...]
    """The GPUs that it uses, in its own order; () if it has none of its own."""
    numa_nodes: tuple[int, ...]
    """The nodes of its GPUs, by which ``cpus`` were chosen; () if it is not bound to a node."""
    cpus: CpuSet | None
    """CPUs to bind to; None: not bound."""
    memory: MemoryPolicy | None
    """None: the kernel's default, memory is local to the CPU that first uses it."""
    env: Mapping[str, str]
    """Variables of this worker, beyond those of the whole job."""
    remark: str
    """Why it is not bound, or bound in another way than asked; "" if there is no remark."""
    command: tuple[str, ...]
    """What it executes: ``(PYTHON, "-u", "train.py", "--lr", "1")``."""
    runs_python: bool
    """TERM goes to it alone; without it (``--no-python``) to its whole group."""
    local_rank_reason: str = ""
    """Why LOCAL_RANK is not the expected index; "" if it is."""


class NodePlan(Struct, frozen=True):
    """All workers of this node in one attempt, and what they have in common."""

    world: World
    host: str
    env: Mapping[str, str]
    """Variables that clusterrun sets or changes for the whole job, fork server included."""
    unset: tuple[str, ...]
    """Variables removed from the job's environment: worker variables of an outer launch."""
    workers: tuple[WorkerPlan, ...]
    """By local rank."""
    remarks: tuple[str, ...]
    """Remarks on the whole node: too few CPUs, a list of GPUs cut short, ..."""
    visible_origin: str = ""
    """``Machine.visible_origin``."""

    def all_remarks(self) -> Iterator[str]:
        """Yield what is remarkable about the node, and about its workers: equal remarks once."""
        yield from self.remarks
        for remark in dict.fromkeys(worker.remark for worker in self.workers if worker.remark):
            ranks = [worker.rank for worker in self.workers if worker.remark == remark]
            yield f"{named_ranks(ranks)}: {remark}"


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
