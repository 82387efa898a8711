"""The job as the user described it: what is known before machines and other nodes are."""

from enum import Enum

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank


class ProgramKind(Enum):
    """What the workers run."""

    SCRIPT = "script"
    """A Python file: ``PYTHON -u train.py ARGS``."""

    MODULE = "module"
    """A Python module, ``-m``: ``PYTHON -u -m pkg.train ARGS``."""

    RUN_PATH = "run-path"
    """``--run-path``, run by ``runpy.run_path``: a file, or a folder or archive with __main__.py."""

    EXECUTABLE = "executable"
    """Any program, ``--no-python``: ``PROGRAM ARGS``, found on PATH."""


class Program(Struct, frozen=True):
    """What every worker runs, and with which arguments."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...]

    @property
    def is_standard_input(self) -> bool:
        """Whether the script is ``-``: only one process can read it, once."""
        return self.kind is ProgramKind.SCRIPT and self.name == "-"


class WorkerCount(Enum):
    """A number of workers per node that is counted, not given."""

    PER_GPU = "per-gpu"
    """The default: one per visible GPU, or one."""

    AUTO = "auto"
    """``auto``, as with torchrun: one per visible GPU, or one per CPU."""

    GPU = "gpu"
    """``gpu``: one per visible GPU; an error without GPUs."""

    CPU = "cpu"
    """``cpu``: one per CPU that the launcher may use."""


class NumaBinding(Enum):
    """Which CPUs a worker may use, relative to the NUMA node of its GPU."""

    AUTO = "auto"
    """The default: as ``near``."""

    NODE = "node"
    """All CPUs of the GPU's NUMA node, shared by the workers of that node."""

    NEAR = "near"
    """As ``node``, plus the NUMA nodes of the same package without a worker's GPU."""

    SOCKET = "socket"
    """All CPUs of the GPU's package."""

    EXCLUSIVE = "exclusive"
    """Whole cores of the GPU's NUMA node that no other worker has."""

    CORE_COMPLEX = "core-complex"
    """As ``exclusive``, in units of cores that share an L3 cache."""

    NONE = "none"
    """All CPUs that the launcher may use."""

    @property
    def divides(self) -> bool:
        """Whether each worker has its CPUs to itself."""
        return self in {NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX}


class NumaMemory(Enum):
    """Where the memory of a bound worker comes from."""

    NONE = "none"
    """The kernel's default: the NUMA node whose CPU first uses it."""

    PREFERRED = "preferred"
    """The NUMA nodes of its GPUs first, then others."""

    BIND = "bind"
    """Only the NUMA nodes of its GPUs: when they are full, the kernel's OOM killer acts."""


class MappedGpu(Struct, frozen=True):
    """The place of a GPU against what the machine reports: an entry of ``--numa-map``."""

    gpu: str
    """As typed: an index, a PCI address or a UUID."""
    place: int | CpuSet
    """The number of a NUMA node, or the CPUs near the GPU."""

    def __str__(self) -> str:
        """Return the entry as typed: ``0=node 1``."""
        return f"{self.gpu}={f'node {self.place}' if isinstance(self.place, int) else self.place}"


class StartMethod(Enum):
    """How workers start."""

    AUTO = "auto"
    """``FORK`` if that is safe, else ``SPAWN``."""

    FORK = "fork"
    """By forking the fork server, which has imported what the script imports first."""

    SPAWN = "spawn"
    """By executing an interpreter for each worker."""


class ElasticJoin(Enum):
    """When a node that joins a running job of ``--nnodes MIN:MAX`` is let in."""

    RESTART = "restart"
    """At the next attempt, which begins for another reason."""

    NOW = "now"
    """All workers restart for it."""


class OnHang(Enum):
    """What is done when no worker has printed or exited for ``hang_timeout``."""

    REPORT = "report"
    """The stacks of all ranks are printed."""

    RESTART = "restart"
    """All workers restart, too, as after the failure of one."""

    STOP = "stop"
    """The job ends, too."""


class NodeLauncher(Enum):
    """What starts the agents of a job's nodes."""

    NONE = "none"
    """A person or a scheduler: this command is the agent of one node."""

    SSH = "ssh"
    """This command, by ssh on each host."""


ENV_VARIABLE = "CLUSTERRUN_ENV"
"""What ``--env`` says, a setting on each line: other users can read command lines, and no variables."""


class LastCall(Struct, frozen=True):
    """With ``--nnodes MIN:MAX``, a job starts with ``minimum`` nodes or more after some time."""

    minimum: int
    timeout: float
    """Seconds to wait for the others once ``minimum`` nodes have joined."""


class TaskLayout(Struct, frozen=True):
    """The place of this agent's one worker, if the scheduler started a task for each worker.

    The job has ``size`` such agents.
    """

    rank: GlobalRank
    size: int
    local_rank: LocalRank
    local_size: int
    """The number of tasks on this node; other nodes may have more or fewer."""
    node_rank: NodeRank
    nodes: int
    own_cpus: bool = False
    """The scheduler has bound this task to CPUs that no other task of the node may use."""
    gpus: int | None = None
    """GPUs that the scheduler gave to all tasks of this node; None: unknown."""
