"""The world of one attempt, and one node's plan in it: what ``--dry-run`` prints and the workers get."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field

from clusterrun.bounds import (
    NON_NEGATIVE,
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

    node_rank: Annotated[NodeRank, NON_NEGATIVE]
    address: Name
    """Where other nodes reach it."""
    workers: Size
    ports: tuple[Port, ...] = ()
    """One for each of them; (): not known yet."""
    master_port: Port | None = None


class NumberedProgram(Struct, frozen=True):
    """The main program or a service, and the numbers of its workers in the job."""

    name: Name
    first: Count
    """That of its rank 0. Those of the main program are its ranks."""
    size: Count

    def named(self, numbers: Iterable[int]) -> str:
        """Return its workers of these numbers as messages name them: "server ranks 0-2"; "" for none."""
        own = [each - self.first for each in numbers if 0 <= each - self.first < self.size]
        name = "" if self.name == MAIN else f"{self.name} "
        return f"{name}{named_ranks(own)}" if own else ""

    def label(self, number: int) -> str:
        """Return the short name of a service's worker: "server 0"; "" if it is none."""
        is_own = self.name != MAIN and 0 <= number - self.first < self.size
        return f"{self.name} {number - self.first}" if is_own else ""


def named_workers(programs: Iterable[NumberedProgram], numbers: Iterable[int]) -> str:
    """Return workers as messages name them: "ranks 0-3, server rank 2".

    ``programs``: those of the job; none if it has no services.
    """
    known = list(numbers)
    found = [name for each in programs if (name := each.named(known))]
    return ", ".join(found) or named_ranks(known)


class ProgramWorld(Struct, frozen=True):
    """A program of a job with services: its ranks are counted over these nodes."""

    name: Name
    first: Count
    """The number in the job of its rank 0."""
    nodes: tuple[ProgramOnNode, ...]

    @property
    def size(self) -> int:
        return sum(each.workers for each in self.nodes)

    @property
    def numbered(self) -> NumberedProgram:
        return NumberedProgram(self.name, self.first, self.size)

    def position_on(self, node_rank: int) -> tuple[int, int]:
        """Return a node's index among its nodes, and the rank of the first worker there."""
        index = next(at for at, each in enumerate(self.nodes) if each.node_rank == node_rank)
        return index, sum(each.workers for each in self.nodes[:index])


class World(Struct, frozen=True):
    """One node's view of the whole job in one attempt."""

    run_id: Annotated[RunId, Meta(min_length=1)]
    """Node 0's name for the job, the same on all nodes: TORCHELASTIC_RUN_ID."""
    attempt: Count
    """Number of the attempt, from 0: TORCHELASTIC_RESTART_COUNT."""
    node_rank: Annotated[NodeRank, NON_NEGATIVE]
    nodes: Size
    first_rank: Annotated[GlobalRank, NON_NEGATIVE]
    """Global rank of this node's local rank 0: the sum of the workers of all nodes before."""
    local_size: Count
    """0 on a node that has services alone."""
    size: Size
    first_role_rank: Annotated[GlobalRank, NON_NEGATIVE]
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
        return named_workers((each.numbered for each in self.programs), numbers)

    def program_of(self, number: int) -> NumberedProgram:
        """Return the program of a worker by its number in the job."""
        numbered = (each.numbered for each in self.programs)
        own = (it for it in numbered if it.first <= number < it.first + it.size)
        return next(own, NumberedProgram(MAIN, 0, self.size))


class WorkerSlot(Struct, frozen=True):
    """One worker of a node, and its GPUs."""

    gpus: tuple[Gpu, ...] | None
    """In its own order; () if it has none. None: workers share the node's, and only their script knows
    which it uses, or nothing is known of them."""
    is_ours: bool = True
    """This agent starts it; if not, it is another task's, or another job's."""
    program: Name | None = MAIN
    """The main program or a service; None: perhaps it is another job's."""


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
    warning: str
    """Why it is not bound, or bound in another way than asked; "" if there is no warning."""
    command: tuple[str, ...]
    """What it executes: ``(PYTHON, "-u", "train.py", "--lr", "1")``."""
    runs_python: bool
    """TERM goes to it alone; without it (``--no-python``) to its whole group."""
    service: "Service | None" = None
    """None: it is the main program's."""
    needs_ras_port: bool = False
    """It gets NCCL_RAS_ADDR, with a port that is chosen when the attempt begins."""
    local_rank_reason: str = ""
    """Why LOCAL_RANK is not the expected index; "" if it is."""

    @property
    def rank_in_program(self) -> int:
        """Its rank among the workers of its service; of the main program, its rank."""
        return self.rank if self.service is None else int(self.env["ROLE_RANK"])


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
    warnings: tuple[str, ...]
    """Remarks on the whole node: too few CPUs, a list of GPUs cut short, ..."""
    visible_origin: str = ""
    """``Machine.visible_origin``."""

    def all_warnings(self) -> Iterator[str]:
        """Yield what is remarkable about the node, and about its workers: equal warnings once."""
        yield from self.warnings
        for warning in dict.fromkeys(worker.warning for worker in self.workers if worker.warning):
            ranks = [worker.rank for worker in self.workers if worker.warning == warning]
            yield f"{self.world.named(ranks)}: {warning}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those of the workers in the job, by local rank: the main program's are their ranks."""
        return tuple(worker.rank for worker in self.workers)

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
    nodes_keep_port = job.last_call is not None and job.rendezvous.rdzv_endpoint is None
    return World(
        run_id=job.join.run_id,
        attempt=0,
        node_rank=node_rank,
        nodes=job.nnodes,
        first_rank=first,
        local_size=workers,
        size=size,
        first_role_rank=first,
        role_size=size,
        master_addr=_address(job),
        master_port=None if nodes_keep_port else job.rendezvous.master_port,
        programs=programs,
    )


def _address(job: Job) -> str:
    if job.rendezvous.master_addr is not None:
        return job.rendezvous.master_addr
    endpoint = job.rendezvous.rdzv_endpoint if job.agents > 1 else None
    return LOOPBACK if endpoint is None else Endpoint.parse(endpoint).host
