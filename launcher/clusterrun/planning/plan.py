"""The world of one attempt, and one node's plan in it: what ``--dry-run`` prints and the workers get."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

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
from clusterrun.job.job import MAIN, Job
from clusterrun.job.values import LOOPBACK, Endpoint
from clusterrun.machine.machine import Gpu

if TYPE_CHECKING:
    # Few jobs have one.
    from clusterrun.job.services import Service


class ProgramOnNode(Struct, frozen=True):
    """The workers of one program on one node."""

    node_rank: Annotated[NodeRank, COUNTED]
    address: Name
    """Where other nodes reach it."""
    workers: Size
    ports: tuple[Port, ...] = ()
    """One for each of them; (): not known yet."""
    master_port: Port | None = None


class ProgramWorld(Struct, frozen=True):
    """The main program or a service of a job with services: its ranks are counted over these nodes."""

    name: Name
    first: Count
    """The number in the job of its rank 0. Those of the main program are its ranks."""
    nodes: tuple[ProgramOnNode, ...]

    @property
    def size(self) -> int:
        return sum(each.workers for each in self.nodes)

    def place(self, node_rank: int) -> tuple[int, int]:
        """Return a node's index among its nodes, and the rank of the first worker there."""
        index = next(at for at, each in enumerate(self.nodes) if each.node_rank == node_rank)
        return index, sum(each.workers for each in self.nodes[:index])

    def named(self, numbers: Iterable[int]) -> str:
        """Return its workers of these numbers as messages name them: "server ranks 0-2"."""
        own = [each - self.first for each in numbers if 0 <= each - self.first < self.size]
        name = "" if self.name == MAIN else f"{self.name} "
        return f"{name}{named_ranks(own)}" if own else ""


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
    local_size: Count
    """0 on a node that has services alone."""
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
    programs: tuple[ProgramWorld, ...] = ()
    """Of a job with services: the main one, whose world the fields above describe, then services."""

    def named(self, numbers: Iterable[int]) -> str:
        """Return workers as messages name them: "ranks 0-3, server rank 2"."""
        known = list(numbers)
        if not self.programs:
            return named_ranks(known)
        return ", ".join(filter(None, (each.named(known) for each in self.programs)))


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
    """Its number in the job: that of a service's worker follows those of all programs before."""
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
    service: "Service | None" = None
    """None: it is the main program's."""
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
            yield f"{self.world.named(ranks)}: {remark}"

    def name(self, local_rank: LocalRank) -> str:
        """Return the name of a worker in messages: "rank 3", "server rank 0"."""
        return self.world.named((self.workers[local_rank].rank,))


def assumed_world(job: Job, workers: int) -> World:
    """Return the world where every node has as many ``workers`` as this one, and the same role.

    Its port is None if one is chosen at the start; its node rank is 0 if that is not known.
    """
    programs: tuple[ProgramWorld, ...] = ()
    if job.services:
        # Few jobs have some.
        from clusterrun.planning.services import assumed_programs

        programs = assumed_programs(job, workers)
    tasks = job.tasks
    node_rank = NodeRank(job.workers.node_rank or 0)
    first = GlobalRank(node_rank * workers) if tasks is None else tasks.rank
    size = job.nnodes * workers if tasks is None else tasks.size
    if programs:
        size = max(1, programs[0].size)
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
        programs=programs,
    )


def _address(job: Job) -> str:
    if job.meeting.master_addr is not None:
        return job.meeting.master_addr
    endpoint = job.meeting.rdzv_endpoint if job.agents > 1 else None
    return LOOPBACK if endpoint is None else Endpoint.parse(endpoint).host
