"""The job as it was described, before any machine or other node is looked at."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.last_call import LastCall
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank, RankSet
from clusterrun.domain.streams import StreamChoice


class ProgramKind(Enum):
    """What the workers run."""

    SCRIPT = "script"
    """A Python file: ``PYTHON -u train.py ARGS``."""

    MODULE = "module"
    """A Python module, ``-m``: ``PYTHON -u -m pkg.train ARGS``."""

    RUN_PATH = "run-path"
    """What ``runpy.run_path`` takes, ``--run-path``: a file, or a folder or archive with __main__.py."""

    EXECUTABLE = "executable"
    """Any program, ``--no-python``: ``PROGRAM ARGS``, found on PATH."""


class Program(Struct, frozen=True):
    """What every worker runs, and with which arguments."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...]

    @property
    def is_standard_input(self) -> bool:
        """Whether Python reads the script from there, ``-``: one process can, and once."""
        return self.kind is ProgramKind.SCRIPT and self.name == "-"


class WorkerCount(Enum):
    """Ways to say the number of workers per node other than by a number."""

    PER_GPU = "per-gpu"
    """Not given: one per visible GPU, else one."""

    AUTO = "auto"
    """Given as ``auto``: torchrun's meaning, GPUs, else CPUs."""

    GPU = "gpu"
    """Given as ``gpu``: the visible GPUs, an error where there are none."""

    CPU = "cpu"
    """Given as ``cpu``: the CPUs that this process may use."""


class NumaBinding(Enum):
    """Which CPUs a worker may use, relative to the NUMA node of its GPU."""

    AUTO = "auto"
    """The default: as ``near``."""

    NODE = "node"
    """All CPUs of the GPU's node, shared by the ranks of that node."""

    NEAR = "near"
    """As ``node``, plus the nodes of the same package that own no rank's GPU."""

    SOCKET = "socket"
    """All CPUs of the package that the GPU's node is in."""

    EXCLUSIVE = "exclusive"
    """Whole cores of the GPU's node that no other rank has."""

    CORE_COMPLEX = "core-complex"
    """As ``exclusive``, in units of cores that share an L3 cache."""

    NONE = "none"
    """No binding: what the launcher may use, the workers may use."""

    @property
    def divides(self) -> bool:
        """Whether each worker gets CPUs that no other has."""
        return self in {NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX}


class NumaMemory(Enum):
    """Where the memory of a bound worker comes from."""

    NONE = "none"
    """Wherever it is first used, which is local to a bound worker: the kernel's own way."""

    PREFERRED = "preferred"
    """The nodes of its GPUs while they have any, then others."""

    BIND = "bind"
    """The nodes of its GPUs alone: where they have no more, the kernel's OOM killer acts."""


class MappedGpu(Struct, frozen=True):
    """Where the user says that a GPU is, whatever the machine says: an entry of ``--numa-map``."""

    gpu: str
    """As it was typed: its index, its PCI address, or its UUID."""
    place: int | CpuSet
    """The id of a NUMA node, or the CPUs themselves."""

    def __str__(self) -> str:
        """Return the entry as one would type it: ``0=node 1``."""
        return f"{self.gpu}={f'node {self.place}' if isinstance(self.place, int) else self.place}"


class StartMethod(Enum):
    """How a worker comes to run its program."""

    AUTO = "auto"
    """``fork`` where that is safe, else ``spawn``."""

    FORK = "fork"
    """Forked from a process that has imported what the script imports first, which it then runs."""

    SPAWN = "spawn"
    """Executed: an interpreter of its own, from the start."""


class TaskLayout(Struct, frozen=True):
    """Where a scheduler started one task for each worker: this clusterrun's one worker among all.

    Such a clusterrun is the agent of exactly one worker; ``size`` of them make up the job.
    """

    rank: GlobalRank
    size: int
    local_rank: LocalRank
    local_size: int
    """Tasks on this node; other nodes may have another number of them."""
    node_rank: NodeRank
    nodes: int
    own_cpus: bool = False
    """The scheduler bound this task to CPUs that no other task of the node may use."""


class JobSpec(Struct, frozen=True):
    """Everything that flags, variables, the job file and the cluster say, with its origin.

    The field names are the flags' names in snake_case; ``sources.options`` has one row for each
    but those that say so.
    """

    nnodes: Fact[int]
    """At most; as many come, but for a last call."""
    fewest_nodes: Fact[int]
    """No flag, the MIN of ``nnodes``: so many are enough at the last call; else as ``nnodes``."""
    node_rank: Fact[int | None]
    """None: not given."""
    nproc_per_node: Fact[int | WorkerCount]
    tasks: Fact[TaskLayout | None]
    """No flag, the cluster's; None: this clusterrun starts all workers of its node."""
    hosts: Fact[tuple[str, ...]]
    """Names of the nodes by rank, ``--hosts`` or the cluster's; () where nothing tells."""
    cluster: Fact[str]
    """Whose variables were read; "none" for nobody's."""
    numa_node: Fact[int | None]
    """No flag, the cluster's: the one NUMA node that the job may use; None: all."""
    unclear: Fact[str]
    """No flag, the cluster's: what to type where its ranks may count nodes or workers, which are
    the same with one worker on each node, and only then; "" where it is clear."""
    master_addr: Fact[str | None]
    """Without brackets; None: nothing says, and on one node nothing needs to."""
    master_port: Fact[int | None]
    """None: on one node a free port for each attempt, else one of ``port_candidates``, if any."""
    port_candidates: Fact[tuple[int, ...]]
    """No flag, the cluster's: ports to meet at, the first that is free; () where a port is given."""
    rdzv_endpoint: Fact[str | None]
    """Where agents meet for the whole job: ``HOST``, ``HOST:PORT``, ``[::1]:29500``."""
    base_port: Fact[int]
    """The first port of each node's workers in Paddle's variables."""
    rdzv_timeout: Fact[float]
    """Seconds that all nodes have to come, or enough of them."""
    last_call_timeout: Fact[float]
    """Seconds that the others have once enough are there."""
    token: Fact[str | None]
    """The secret itself, which nothing may print."""
    strict_join: Fact[bool]
    run_id: Fact[str]
    heartbeat_timeout: Fact[float]
    """Seconds of silence after which a node counts as lost."""
    hang_timeout: Fact[float | None]
    """Seconds without any output or end of a rank, after which all stacks are shown; None: never."""
    max_restarts: Fact[int]
    no_restart_exit_codes: Fact[tuple[int, ...]]
    """Exit codes of the cause that no restart follows, in order."""
    no_fail_fast: Fact[bool]
    """Restart even after the same failure twice at once."""
    shutdown_timeout: Fact[float]
    """Seconds from TERM to KILL."""
    contain: Fact[bool]
    """Everything that the job starts lives in a PID namespace, which ends with the fork server."""
    exec: Fact[bool]
    """This process becomes the one worker, and nobody looks after it."""
    numa_binding: Fact[NumaBinding]
    numa_memory: Fact[NumaMemory]
    numa_map: Fact[tuple[MappedGpu, ...]]
    """In the order of the user; () where the machine itself is asked."""
    numa_strict: Fact[bool]
    """Start nothing where a worker can't be bound as asked."""
    devices: Fact[tuple[str, ...]]
    """Indices and UUIDs of the GPUs for the workers, in their order; (): all that are visible."""
    gpus_per_worker: Fact[int | None]
    """None: not given, and then it is one; 0: the same, but workers may share GPUs or use none."""
    gpu_per_rank: Fact[bool]
    """Each worker sees its own GPUs alone."""
    virtual_local_rank: Fact[bool]
    """And finds LOCAL_RANK to be 0, as of torchrun's flag of that name."""
    role: Fact[str]
    """ROLE_NAME of the workers."""
    signals_to_handle: Fact[str]
    """Names that the workers are told; what clusterrun does about signals is its own affair."""
    pass_local_rank: Fact[str]
    """The argument that tells the script its local rank, without dashes; "" for none."""
    start_method: Fact[StartMethod]
    preload: Fact[str | tuple[str, ...]]
    """``auto``, ``none``, or the modules to import before workers are forked."""
    preload_timeout: Fact[float]
    """Seconds for which importing them may stand still."""
    python: Fact[str]
    stdin_rank: Fact[int | None]
    """Who reads standard input, by global rank; None: 0, and on a terminal any worker."""
    env: Mapping[str, Fact[str]]
    """Variables for the workers from the job file and ``--env``, by name."""
    log_dir: Fact[str | None]
    """None: no files."""
    redirects: Fact[StreamChoice | None]
    """Streams that go to log files only; None: nothing is said."""
    tee: Fact[StreamChoice | None]
    """Streams that go to log files and are printed; None, and none redirected: all there are."""
    local_ranks_filter: Fact[RankSet | None]
    """Whose lines are printed, by local rank; None: everyone's."""
    ranks: Fact[RankSet | None]
    """The same by global rank; both hold."""
    log_line_prefix_template: Fact[str | None]
    """What stands before a printed line, with ``${rank}`` and others in it; None: the usual."""
    progress_interval: Fact[float]
    """Seconds between lines with a progress bar's state where it is not drawn; 0: only its end."""
    duplicate_stdout_filters: Fact[tuple[str, ...]]
    """Printed lines that contain one of these go to a file of their own, too; (): none do."""
    duplicate_stderr_filters: Fact[tuple[str, ...]]
    coloured: Fact[bool]
    """No flag, the terminal's: whoever reads what is printed sees colours, and no file gets them."""
    workerlog: Fact[bool]
    """Both streams of a worker go to one file, and links lead there by local rank."""
    events: Fact[str | None]
    """The file that tells machines what happens; ``%n`` in it stands for the node's rank."""
    program: Fact[Program]
    as_torchrun: Fact[bool]
    """No flag, the name by which clusterrun was called: what no flag says is then as torchrun does
    it, OMP_NUM_THREADS and the names of log files."""

    @property
    def agents(self) -> int:
        """How many clusterruns make up the job: those that must join."""
        return self.nnodes.value if self.tasks.value is None else self.tasks.value.size

    @property
    def last_call(self) -> LastCall | None:
        """When the job begins without some of its nodes; None: never."""
        # A scheduler that starts a task for each worker starts them all.
        if self.fewest_nodes.value == self.nnodes.value or self.tasks.value is not None:
            return None
        return LastCall(self.fewest_nodes.value, self.last_call_timeout.value)

    @property
    def agent_rank(self) -> int | None:
        """This clusterrun's place among them; None: not given."""
        return self.node_rank.value if self.tasks.value is None else self.tasks.value.rank
