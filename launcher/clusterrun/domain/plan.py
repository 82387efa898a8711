"""Who runs where on this node in one attempt: what ``--dry-run`` prints and the workers get."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import NumaMemory
from clusterrun.domain.machine import Gpu
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.domain.world import World


class MemoryPolicy(Struct, frozen=True):
    """From which NUMA nodes a worker gets its memory."""

    mode: NumaMemory
    """``PREFERRED`` or ``BIND``."""
    nodes: tuple[int, ...]
    """At least one, each with CPUs and with memory that this job may use."""

    def __str__(self) -> str:
        """Return it for people: ``bind 0,1``."""
        return f"{self.mode.value} {','.join(map(str, self.nodes))}"


class WorkerPlan(Struct, frozen=True):
    """One worker: its ranks, its place, and the variables that only it gets."""

    rank: GlobalRank
    local_rank: LocalRank
    """Its index among the workers that this clusterrun starts: what LOCAL_RANK says, but in tasks."""
    gpus: tuple[Gpu, ...]
    """Those that it is to use, in its own order; () where none is known to be its own."""
    numa_nodes: tuple[int, ...]
    """The nodes of its GPUs, by which ``cpus`` were chosen; () where it is not bound to any."""
    cpus: CpuSet | None
    """CPUs to bind to; None: not bound."""
    memory: MemoryPolicy | None
    """None: the kernel's own way, which takes it from where it is first used."""
    env: Mapping[str, str]
    """Variables of this worker, beyond those of the whole job."""
    remark: str
    """Why it is not bound, or bound otherwise than its GPU would have it; "" if all is as asked."""
    local_rank_reason: str = ""
    """Why LOCAL_RANK is not the index that one would expect; "" if it is."""
    own_arguments: tuple[str, ...] = ()
    """Arguments that only it gets, before all others: ``--local-rank=0``."""


class NodePlan(Struct, frozen=True):
    """All workers of this node in one attempt, and what they have in common."""

    world: World
    host: str
    command: tuple[str, ...]
    """What every worker executes: ``(PYTHON, "-u", "train.py", "--lr", "1")``."""
    signal_group: bool
    """TERM goes to the worker's whole group (``--no-python``) instead of the worker alone."""
    env: Mapping[str, str]
    """Variables that clusterrun sets or changes for the whole job, fork server included."""
    unset: tuple[str, ...]
    """Variables removed from the job's environment: worker variables of an outer launch."""
    workers: tuple[WorkerPlan, ...]
    remarks: tuple[str, ...]
    """Remarks on the whole node: too few CPUs, a list of GPUs cut short, ..."""
    visible_origin: str = ""
    """What gave the workers' GPUs and their order, as ``Machine.visible_origin``."""
    arguments_at: int = 0
    """Index in ``command`` from which on the program's arguments stand, a worker's own first."""

    def command_of(self, worker: WorkerPlan) -> tuple[str, ...]:
        """Return what one worker executes."""
        at = self.arguments_at
        return (*self.command[:at], *worker.own_arguments, *self.command[at:])

    @property
    def runs_python(self) -> bool:
        """Whether the workers are Python programs, which we know more of than of others."""
        return not self.signal_group
