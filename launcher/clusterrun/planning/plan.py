"""The world of an attempt, and a node's plan in it, which ``--dry-run`` prints and the workers get."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct, field
from msgspec.structs import replace

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
    # Few jobs have services.
    from clusterrun.job.services import Service


class ProgramOnNode(Struct, frozen=True):
    """The workers of one program on one node."""

    node_rank: Annotated[NodeRank, NON_NEGATIVE]
    address: Name
    """The node's address for other nodes."""
    workers: Size
    ports: tuple[Port, ...] = ()
    """One per worker; () if not known yet."""
    master_port: Port | None = None


class NumberedProgram(Struct, frozen=True):
    """The main program or a service, and the numbers of its workers in the job.

    The workers of all programs are numbered through: the main program's numbers are its ranks.
    """

    name: Name
    first: Count
    """The number of its rank 0."""
    size: Count

    def named(self, numbers: Iterable[int]) -> str:
        """Return its workers among ``numbers`` as text: "server ranks 0-2"; "" for none."""
        own = [each - self.first for each in numbers if 0 <= each - self.first < self.size]
        name = "" if self.name == MAIN else f"{self.name} "
        return f"{name}{named_ranks(own)}" if own else ""

    def label(self, number: int) -> str:
        """Return the short name of a service's worker: "server 0"; "" for other workers."""
        is_own = self.name != MAIN and 0 <= number - self.first < self.size
        return f"{self.name} {number - self.first}" if is_own else ""


def named_workers(programs: Iterable[NumberedProgram], numbers: Iterable[int]) -> str:
    """Return workers as text: "ranks 0-3, server rank 2".

    ``programs`` are the job's programs; it is empty if the job has no services.
    """
    known = list(numbers)
    found = [name for each in programs if (name := each.named(known))]
    return ", ".join(found) or named_ranks(known)


class ProgramWorld(Struct, frozen=True):
    """A program of a job with services, and the nodes over which its ranks are counted."""

    name: Name
    first: Count
    """The number of its rank 0 in the job."""
    nodes: tuple[ProgramOnNode, ...]

    @property
    def size(self) -> int:
        return sum(each.workers for each in self.nodes)

    @property
    def numbered(self) -> NumberedProgram:
        return NumberedProgram(self.name, self.first, self.size)

    def with_node_zero_at(self, address: str) -> "ProgramWorld":
        """Return the program with another address of node 0."""
        nodes = (each if each.node_rank else replace(each, address=address) for each in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def position_on(self, node_rank: int) -> tuple[int, int]:
        """Return a node's index among the program's nodes, and the rank of its first worker there."""
        index = next(at for at, each in enumerate(self.nodes) if each.node_rank == node_rank)
        return index, sum(each.workers for each in self.nodes[:index])


class World(Struct, frozen=True):
    """The whole job in one attempt, as seen from one node."""

    run_id: Annotated[RunId, Meta(min_length=1)]
    """TORCHELASTIC_RUN_ID, which node 0 chooses for all nodes."""
    attempt: Count
    """TORCHELASTIC_RESTART_COUNT: the number of the attempt, from 0."""
    node_rank: Annotated[NodeRank, NON_NEGATIVE]
    nodes: Size
    first_rank: Annotated[GlobalRank, NON_NEGATIVE]
    """Global rank of this node's local rank 0: the number of workers on the nodes before."""
    local_size: Count
    """0 on a node that has only services."""
    size: Size
    first_role_rank: Annotated[GlobalRank, NON_NEGATIVE]
    """As ``first_rank``, but counted among the nodes of this node's role."""
    role_size: Size
    """Workers of this role on all nodes."""
    master_addr: Line
    master_port: Port | None
    """None only in a dry run, if a free port will be chosen at the start."""
    kept_attempts: Count = 0
    """Attempts of this run's earlier, suspended jobs; the numbers of log folders continue from here."""
    interface: Name = ""
    """The network interface that libraries must use; "" if they find it themselves."""
    programs: tuple[ProgramWorld, ...] = ()
    """In a job with services: the main program, which the fields above describe, then the services."""

    def named(self, numbers: Iterable[int]) -> str:
        """Return workers as text: "ranks 0-3, server rank 2"."""
        return named_workers((each.numbered for each in self.programs), numbers)

    def program_of(self, number: int) -> NumberedProgram:
        """Return the program of a worker by its number in the job."""
        numbered = (each.numbered for each in self.programs)
        own = (it for it in numbered if it.first <= number < it.first + it.size)
        return next(own, NumberedProgram(MAIN, 0, self.size))


class WorkerSlot(Struct, frozen=True):
    """A worker of a node, and its GPUs."""

    gpus: tuple[Gpu, ...] | None
    """In the worker's order; () if it has none. None if unknown: workers share the node's GPUs and only
    their script knows which, or another task has GPUs that are not visible here."""
    is_ours: bool = True
    """Whether this agent starts it; otherwise it is another task's or another job's."""
    program: Name | None = MAIN
    """The main program or a service; None if it may be another job's."""


class MemoryPolicy(Struct, frozen=True):
    """The NUMA nodes that a worker's memory comes from."""

    mode: str
    """``preferred`` or ``bind``, the values of --numa-memory."""
    nodes: tuple[int, ...] = field(name="numa_nodes")
    """At least one; each has CPUs and memory that this job may use."""

    def __str__(self) -> str:
        return f"{self.mode} {','.join(map(str, self.nodes))}"


class WorkerPlan(Struct, frozen=True):
    """One worker: its ranks, GPUs, binding, command and variables."""

    rank: GlobalRank
    """Its number in the job; services' workers are numbered after the main program's."""
    local_rank: LocalRank
    """Its index among this agent's workers. LOCAL_RANK differs in a scheduler's tasks."""
    gpus: tuple[Gpu, ...]
    """The GPUs that it uses, in its order; () if it has none of its own."""
    numa_nodes: tuple[int, ...]
    """The ids of the NUMA nodes for which ``cpus`` were chosen; () if it is not bound."""
    cpus: CpuSet | None
    """CPUs to bind to; None if it is not bound."""
    memory: MemoryPolicy | None
    """None for the kernel's default: memory is local to the CPU that first uses it."""
    env: Mapping[str, str]
    """Variables of this worker in addition to those of the whole job."""
    warning: str
    """Why it is not bound as requested; "" if there is no warning."""
    command: tuple[str, ...]
    """The command line: ``(PYTHON, "-u", "train.py", "--lr", "1")``."""
    runs_python: bool
    """Whether it is a Python program, which alone gets SIGTERM; else (``--no-python``) its process group does."""
    service: "Service | None" = None
    """None for the main program."""
    needs_ras_port: bool = False
    """Whether it gets NCCL_RAS_ADDR with a port that is chosen when the attempt begins."""
    local_rank_reason: str = ""
    """Why LOCAL_RANK is not ``local_rank``; "" if it is."""

    @property
    def rank_in_program(self) -> int:
        """Its rank among the workers of its program."""
        return self.rank if self.service is None else int(self.env["ROLE_RANK"])


class NodePlan(Struct, frozen=True):
    """All workers of a node in one attempt, and what they have in common."""

    world: World
    host: str
    env: Mapping[str, str]
    """Variables that clusterrun sets for the whole job, including the fork server."""
    unset: tuple[str, ...]
    """Variables that are removed from the environment: the worker variables of an outer launch."""
    workers: tuple[WorkerPlan, ...]
    """By local rank."""
    warnings: tuple[str, ...]
    """Warnings about the whole node: too few CPUs, an invalid entry in a list of GPUs, ..."""
    visible_origin: str = ""
    """``Machine.visible_origin``."""

    def all_warnings(self) -> Iterator[str]:
        """Yield the warnings about the node and its workers, equal ones once."""
        yield from self.warnings
        for warning in dict.fromkeys(worker.warning for worker in self.workers if worker.warning):
            ranks = [worker.rank for worker in self.workers if worker.warning == warning]
            yield f"{self.world.named(ranks)}: {warning}"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the workers in the job, by local rank."""
        return tuple(worker.rank for worker in self.workers)

    def name(self, local_rank: LocalRank) -> str:
        """Return a worker as text: "rank 3", "server rank 0"."""
        return self.world.named((self.workers[local_rank].rank,))


def assumed_world(job: Job, workers: int, programs: tuple[ProgramWorld, ...] = ()) -> World:
    """Return the world before rendezvous, assuming that all nodes have as many ``workers`` and this role.

    ``programs`` are those of a job with services. The master port is None if one will be chosen at the
    start; the node rank is 0 if unknown.
    """
    tasks = job.tasks
    node_rank = NodeRank(job.workers.node_rank or 0)
    first = GlobalRank(node_rank * workers) if tasks is None else tasks.rank
    size = job.nnodes * workers if tasks is None else tasks.size
    if programs:
        size = max(1, programs[0].size)
    # If nodes may join late, the agents keep the master port and the workers get another.
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
