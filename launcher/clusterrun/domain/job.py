"""The job as the user described it: what is known before machines and other nodes are."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank, RankSet
from clusterrun.domain.scheduler import SchedulerJob
from clusterrun.domain.streams import StreamChoice


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


class Given(Struct, frozen=True):
    """What depends on whether, or by what, a value was set: origins are for people."""

    run_id: bool = False
    """It is set, by an option or a scheduler, and the same on all nodes; else each has its own."""
    python: bool = False
    signals_to_handle: bool = False
    at_endpoint: bool = False
    """``--rdzv-endpoint`` says where node 0 is, not ``--master-addr``."""
    exports: tuple[str, ...] = ()
    """Variables of a script that alone make this a job of several nodes; (): there are none."""
    no_end: str = ""
    """Why it is unknown when the scheduler ends the job, where ``suspend_before`` needs to know."""


class JobSpec(Struct, frozen=True):
    """All values of the job, each with its origin.

    A field has the name of its option in ``job.options``, unless its docstring has "no flag".
    """

    nnodes: Fact[int]
    """Maximum number of nodes; exactly this many unless MIN:MAX is given."""
    fewest_nodes: Fact[int]
    """No flag, MIN of ``--nnodes MIN:MAX``; otherwise as ``nnodes``."""
    node_rank: Fact[int | None]
    """None: not given."""
    nproc_per_node: Fact[int | WorkerCount]
    tasks: Fact[TaskLayout | None]
    """No flag, the cluster's; None: this agent starts all workers of its node."""
    hosts: Fact[tuple[str, ...]]
    """Names of the nodes by rank, from ``--hosts`` or the cluster; () if unknown."""
    cluster: Fact[str]
    """The cluster whose variables were read, or "none"."""
    numa_node: Fact[int | None]
    """No flag, the cluster's: the one NUMA node that the job may use; None: all."""
    unclear: Fact[str]
    """No flag, the cluster's: what to type if its ranks could be those of nodes or of workers; "" if
    only one is possible. With one worker on each node, both are the same."""
    master_addr: Fact[str | None]
    """Without brackets; None: not set, and on one node not needed."""
    master_port: Fact[int | None]
    """None: on one node a free port for each attempt, otherwise one of ``port_candidates``."""
    port_candidates: Fact[tuple[int, ...]]
    """No flag, the cluster's: ports to try in this order; () if ``master_port`` is set."""
    rdzv_endpoint: Fact[str | None]
    """The coordinator's address for the whole job: ``HOST``, ``HOST:PORT``, ``[::1]:29500``."""
    base_port: Fact[int]
    """The first port of each node's workers in PADDLE_ variables."""
    rdzv_timeout: Fact[float]
    """Seconds in which ``fewest_nodes`` nodes must join."""
    last_call_timeout: Fact[float]
    """Seconds in which more nodes may join after that."""
    token: Fact[str | None]
    """The secret itself; never printed."""
    run_id: Fact[str]
    heartbeat_timeout: Fact[float]
    """Seconds of silence after which a node is lost."""
    hang_timeout: Fact[float | None]
    """Seconds without output or exit of any worker, after which stacks are printed; None: never."""
    on_hang: Fact[OnHang]
    max_restarts: Fact[int]
    no_restart_exit_codes: Fact[tuple[int, ...]]
    """Exit codes of the cause after which the job is not restarted, in order."""
    no_fail_fast: Fact[bool]
    """Restart even after the same failure twice in a row."""
    spares: Fact[int]
    """Nodes beyond ``nnodes`` that wait to take the places of lost ones."""
    elastic_multiple: Fact[int]
    """With ``--nnodes MIN:MAX``, a multiple of this many nodes work; the others wait."""
    elastic_join: Fact[ElasticJoin]
    max_node_losses: Fact[int | None]
    """None: no limit."""
    check_nodes: Fact[bool]
    """Each node checks itself before it joins."""
    exclude_after: Fact[int]
    """Failures by faults of its machine after which a node is left out; 0: never."""
    rejoin_timeout: Fact[float]
    """Seconds for which a restart waits for another node if no spare is left; 0.0: it does not."""
    shutdown_timeout: Fact[float]
    """The grace period, in seconds."""
    suspend_signal: Fact[int | None]
    """A signal to any agent that asks for a suspension; None: only SIGTERM does."""
    suspend_grace: Fact[float]
    """Seconds from the agreement in which all ranks have to save."""
    suspend_exit_code: Fact[int]
    suspend_before: Fact[float | None]
    """Seconds before ``ends_at`` at which a suspension is wanted; None: never."""
    suspend_hook: Fact[tuple[str, ...]]
    """The command that exits with 0 when a suspension is wanted; (): none."""
    requeue: Fact[bool]
    """Put the job back into the scheduler's queue after a suspension."""
    scheduler: Fact[SchedulerJob | None]
    """No flag, the scheduler's job that this job runs in; None: none."""
    ends_at: Fact[float | None]
    """No flag, the scheduler's: when it ends the job, in seconds since the epoch; None: unknown, or
    not needed."""
    resumed: Fact[int]
    """No flag, the scheduler's: how often it has started the job again."""
    kept_attempts: Fact[int]
    """No flag: attempts of this run whose logs an earlier job has left in ``log_dir``."""
    debug: Fact[int | None]
    """The rank that waits for a debugger; None: none does."""
    pdb: Fact[bool]
    """pdb opens where the first rank that fails has raised its exception."""
    profile: Fact[RankSet | None]
    """The ranks of which some steps are recorded; None: none."""
    contain: Fact[bool]
    """All processes of the job are in a PID namespace, which ends with the fork server."""
    exec: Fact[bool]
    """This process becomes its one worker; no agent stays."""
    numa_binding: Fact[NumaBinding]
    numa_memory: Fact[NumaMemory]
    numa_map: Fact[tuple[MappedGpu, ...]]
    """As the user ordered them; (): what the machine reports."""
    numa_strict: Fact[bool]
    """Start nothing if a worker cannot be bound as asked."""
    devices: Fact[tuple[str, ...]]
    """Indices and UUIDs of the workers' GPUs, in order; (): all visible GPUs."""
    gpus_per_worker: Fact[int | None]
    """None: not given, one; 0: one, and workers may share GPUs or use none."""
    virtual_local_rank: Fact[bool]
    """Each worker sees only its own GPUs, and has LOCAL_RANK 0; torchrun's flag of that name."""
    role: Fact[str]
    """ROLE_NAME of the workers."""
    signals_to_handle: Fact[str]
    """TORCHELASTIC_SIGNALS_TO_HANDLE of the workers; the launcher handles all signals anyway."""
    pass_local_rank: Fact[str]
    """The argument that passes the local rank to the script, without dashes; "" for none."""
    start_method: Fact[StartMethod]
    preload: Fact[str | tuple[str, ...]]
    """``auto``, ``all``, ``none``, or the modules to preload."""
    keep_warm: Fact[float]
    """Seconds for which the fork server stays after the job; 0.0: it ends with it."""
    python: Fact[str]
    env: Mapping[str, Fact[str]]
    """Variables for the workers, by name."""
    log_dir: Fact[str | None]
    """None: no log files."""
    redirects: Fact[StreamChoice | None]
    """Streams that go to log files only; None: not set."""
    tee: Fact[StreamChoice | None]
    """Streams that go to log files and are printed; None, with nothing redirected: all."""
    local_ranks_filter: Fact[RankSet | None]
    """Local ranks whose lines are printed; None: all."""
    ranks: Fact[RankSet | None]
    """Ranks whose lines are printed, of those that ``local_ranks_filter`` leaves; None: all."""
    log_line_prefix_template: Fact[str | None]
    """Printed before each line of a worker, with ``${rank}`` and others; None: the default."""
    duplicate_stdout_filters: Fact[tuple[str, ...]]
    """Printed lines that contain one of these also go to a file of their own."""
    duplicate_stderr_filters: Fact[tuple[str, ...]]
    is_merged: Fact[bool]
    """No flag: the process that has started all agents by ssh prints what they print."""
    coloured: Fact[bool]
    """No flag: workers print to a terminal that shows colours, and to no file."""
    workerlog: Fact[bool]
    """No flag, Paddle's: both streams of a worker go to one log file, with a link by local rank."""
    events: Fact[str | None]
    """The file for events, in JSON; ``%n`` in its name is the node's rank."""
    program: Fact[Program]
    as_torchrun: Fact[bool]
    """No flag: clusterrun was called by the name torchrun, and has torchrun's defaults, such as
    OMP_NUM_THREADS and the names of log files."""
    given: Given = Given()
    """No flag."""

    @property
    def agents(self) -> int:
        """The number of agents in the job, spares included."""
        if self.tasks.value is not None:
            return self.tasks.value.size
        return self.nnodes.value + self.spares.value

    @property
    def outlives_nodes(self) -> bool:
        """Whether the job may go on without a lost node."""
        has_rules = self.spares.value > 0 or self.rejoin_timeout.value > 0 or self.is_elastic
        return self.agents > 1 and has_rules

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes follows losses and newcomers, from MIN to MAX."""
        # With a task for each worker, the scheduler has started all of them.
        return self.fewest_nodes.value < self.nnodes.value and self.tasks.value is None

    @property
    def watched_for(self) -> float:
        """``hang_timeout``; 0.0: never, as a rank that is debugged may be stopped for hours."""
        return 0.0 if self.is_debugged else self.hang_timeout.value or 0.0

    @property
    def is_debugged(self) -> bool:
        return self.debug.value is not None or self.pdb.value

    @property
    def has_wrappers(self) -> bool:
        """Whether some workers execute a program that runs the user's."""
        return self.is_debugged or self.profile.value is not None

    @property
    def last_call(self) -> LastCall | None:
        """When the job starts with fewer than ``nnodes`` nodes; None: never."""
        if self.spares.value > 0:
            return LastCall(self.nnodes.value, self.last_call_timeout.value)
        if not self.is_elastic:
            return None
        return LastCall(self.fewest_nodes.value, self.last_call_timeout.value)

    @property
    def agent_rank(self) -> int | None:
        """This agent's rank among them; None: not given."""
        return self.node_rank.value if self.tasks.value is None else self.tasks.value.rank
