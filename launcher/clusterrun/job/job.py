"""The requested job: what is known before the machine is read and nodes have joined."""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.job.declarations import Setting
from clusterrun.job.options import (
    OPTIONS,
    SUBJECTS,
    Elasticity,
    Failures,
    Files,
    Join,
    Output,
    Placing,
    Program,
    Rendezvous,
    Starting,
    Suspending,
    Workers,
)
from clusterrun.job.values import RankSet

if TYPE_CHECKING:
    from clusterrun.job.services import Service

MAIN = "main"
"""The name of the main program in a job with services."""


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


STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
"""Names that mean a script on standard input."""


class WorkerProgram(Struct, frozen=True):
    """The program of every worker, and its arguments."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...]

    @property
    def is_standard_input(self) -> bool:
        """Whether the script is ``-`` or an equivalent path: only one process can read it, once."""
        is_read = self.kind in {ProgramKind.SCRIPT, ProgramKind.RUN_PATH}
        return is_read and self.name in STANDARD_INPUT


class TaskLayout(Struct, frozen=True):
    """The ranks of this agent's only worker, if the scheduler starts one task per worker.

    The job has ``size`` such agents.
    """

    rank: GlobalRank
    size: int
    local_rank: LocalRank
    local_size: int
    """The number of tasks on this node; other nodes may have more or fewer."""
    node_rank: NodeRank
    nodes: int
    own_cpus: bool | None = None
    """No other task of the node may use the CPUs of this task; None: unknown."""
    gpus: int | None = None
    """The number of GPUs that the scheduler gave to all tasks of this node; None: unknown."""
    all_tasks: str = ""
    """The command that starts all tasks of the job."""
    one_per_node: str = ""
    """The command that starts one task on each node instead."""


class LastCall(Struct, frozen=True):
    """A job with ``--nnodes MIN:MAX`` may start with ``minimum`` nodes after ``timeout``."""

    minimum: int
    timeout: float
    """Seconds to wait for more nodes once ``minimum`` nodes have joined."""


class SchedulerJob(Struct, frozen=True):
    """A job of a scheduler, and its commands."""

    scheduler: str
    """The name in messages: "Slurm"."""
    job_id: str
    """"" if the scheduler's variables do not have it."""
    end_command: tuple[str, ...]
    """Prints when the job ends; () if there is no such command."""
    requeue: tuple[str, ...]
    """Requeues the job; () if the exit code is enough."""

    def __str__(self) -> str:
        return f"{self.scheduler} job {self.job_id}" if self.job_id else self.scheduler


class Given(Struct, frozen=True):
    """What the user or the scheduler has set; code must not parse origins to find out."""

    run_id: bool = False
    """An option or a scheduler sets the run id, so it is the same on all nodes."""
    python: bool = False
    signals_to_handle: bool = False
    at_endpoint: bool = False
    """``--rdzv-endpoint`` sets the address of node 0, not ``--master-addr``."""
    exports: tuple[str, ...] = ()
    """The exported variables without which this would be a one-node job."""
    no_end: str | None = None
    """Why the job's time limit is unknown although ``suspend_before`` needs it."""


class Job(Struct, frozen=True, kw_only=True):
    """The final options of a job by subject, and values that no option sets."""

    workers: Workers
    """``nnodes`` excludes spares. ``cluster`` is the detected one, or "none". ``hosts`` come from the
    option or the cluster, in the order of ranks."""
    rendezvous: Rendezvous
    """``master_port`` is None if each attempt uses a free port (one node) or one of
    ``port_candidates``."""
    join: Join
    failures: Failures
    elasticity: Elasticity
    suspending: Suspending
    starting: Starting
    placing: Placing
    output: Output
    files: Files
    """``log_dir`` is None if no log files are written."""

    program: Program
    """``python`` is the path of the interpreter; ``env`` has the variables of all sources."""

    script: WorkerProgram
    signals_to_handle: str
    """TORCHELASTIC_SIGNALS_TO_HANDLE of the workers; the launcher always handles all signals."""

    tasks: TaskLayout | None = None
    """Set by the cluster; None: this agent starts all workers of its node."""
    numa_node: int | None = None
    """The only NUMA node that the job may use; None: it may use all."""
    unclear: str = ""
    """The command lines to type if the cluster's ranks may count nodes or workers, else "". The two
    counts are equal if every node has one worker."""
    port_candidates: tuple[int, ...] = ()
    """The cluster's ports, to be tried in this order; () if ``master_port`` is set."""
    token: str | None = None
    """The secret itself; never printed."""
    scheduler: SchedulerJob | None = None
    """The scheduler's job that this job runs in."""
    ends_at: float | None = None
    """When the scheduler ends the job, in seconds since the epoch; None: unknown, or not needed."""
    resumed: int = 0
    """How many times the scheduler has restarted the job."""
    kept_attempts: int = 0
    """The number of attempts whose logs an earlier job of this run left in ``log_dir``."""
    is_merged: bool = False
    """The process that started all agents by ssh prints their output."""
    coloured: bool = False
    """Workers print only to a terminal, and it shows colours."""
    workerlog: bool = False
    """As with Paddle, both streams of a worker go to one log file, with a link named by local rank."""
    as_torchrun: bool = False
    """clusterrun was called as torchrun, and uses torchrun's defaults, such as OMP_NUM_THREADS and the
    names of log files."""
    services: "tuple[Service, ...]" = ()
    """Programs that run beside the main program, in the order of the job file."""
    late_env: tuple[tuple[str, str], ...] = ()
    """Variables whose values name a worker's variables, in a job with services; ``env`` has the others."""
    main_nodes: RankSet | None = None
    """The nodes of the main program in a job with services; None: all nodes with a GPU left for it."""
    given: Given = Given()
    origins: Mapping[str, str] = {}
    """Where each value was set, by the name of its option or field; ``env.NAME`` for a variable."""

    def setting(self, name: str) -> Setting[Any]:
        """Return a field or an option with its origin, for messages."""
        if hasattr(self, name):
            return Setting(getattr(self, name), self.origin(name))
        subject = getattr(self, OPTIONS[name].subject.__name__.lower())
        return Setting(getattr(subject, name), self.origin(name))

    def origin(self, name: str) -> str:
        """Return where a value was set, or "default"."""
        return self.origins.get(name, "default")

    @property
    def env(self) -> dict[str, str]:
        """Variables for the workers, by name."""
        return dict(self.program.env)

    @property
    def all_env(self) -> dict[str, str]:
        """Variables for the workers, with those that name a worker's variables as they were written."""
        return {**self.env, **dict(self.late_env)}

    @property
    def nnodes(self) -> int:
        """The number of nodes without spares; with MIN:MAX, the maximum."""
        return self.workers.nnodes.maximum

    @property
    def agents(self) -> int:
        """The number of agents in the job, including spares."""
        return self.nnodes + self.elasticity.spares if self.tasks is None else self.tasks.size

    @property
    def agent_unit(self) -> str:
        """What messages call an agent: "node", or "task" if a node has several."""
        return "node" if self.tasks is None else "task"

    @property
    def survives_node_loss(self) -> bool:
        """Whether the job continues after the loss of a node."""
        has_rules = (
            self.elasticity.spares > 0 or self.elasticity.rejoin_timeout > 0 or self.is_elastic
        )
        return self.agents > 1 and has_rules

    @property
    def is_elastic(self) -> bool:
        """Whether nodes may leave and join while the job runs, from MIN to MAX."""
        # With one task per worker, the scheduler has started all tasks.
        return self.workers.nnodes.minimum < self.nnodes and self.tasks is None

    @property
    def active_hang_timeout(self) -> float:
        """``hang_timeout`` in seconds; 0.0 if hangs are not detected, as with pdb."""
        return 0.0 if self.failures.pdb else self.failures.hang_timeout or 0.0

    @property
    def last_call(self) -> LastCall | None:
        """When the job starts with fewer than the requested nodes; None: never."""
        if self.elasticity.spares > 0:
            return LastCall(self.nnodes, self.join.last_call_timeout)
        if not self.is_elastic:
            return None
        return LastCall(self.workers.nnodes.minimum, self.join.last_call_timeout)

    @property
    def agent_rank(self) -> int | None:
        """The rank of this agent among all agents; None if it is not set."""
        return self.workers.node_rank if self.tasks is None else self.tasks.rank


JOB_SUBJECTS = tuple(each for each in Job.__annotations__.values() if each in SUBJECTS)
"""The subjects that are fields of a job."""
