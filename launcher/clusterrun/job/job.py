"""The job as it is asked for: what is known before machines and other nodes are."""

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
    # Few jobs have one.
    from clusterrun.job.services import Service

MAIN = "main"
"""The name of the main program, beside those of services."""


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
"""Names of a script on standard input."""


class WorkerProgram(Struct, frozen=True):
    """What every worker runs, and with which arguments."""

    kind: ProgramKind
    name: str
    args: tuple[str, ...]

    @property
    def is_standard_input(self) -> bool:
        """Whether the script is ``-`` or its like: only one process can read it, once."""
        is_read = self.kind in {ProgramKind.SCRIPT, ProgramKind.RUN_PATH}
        return is_read and self.name in STANDARD_INPUT


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
    own_cpus: bool | None = None
    """No other task of the node may use the CPUs that this one is bound to; None: unknown."""
    gpus: int | None = None
    """GPUs that the scheduler gave to all tasks of this node; None: unknown."""
    all_tasks: str = ""
    """What to type to start all tasks of the job at once."""
    one_per_node: str = ""
    """What to type to start one task on each node instead."""


class LastCall(Struct, frozen=True):
    """With ``--nnodes MIN:MAX``, a job starts with ``minimum`` nodes or more after some time."""

    minimum: int
    timeout: float
    """Seconds to wait for the others once ``minimum`` nodes have joined."""


class SchedulerJob(Struct, frozen=True):
    """A job of a scheduler, and the commands that speak of it."""

    scheduler: str
    """Its name for people: "Slurm"."""
    job_id: str
    end_command: tuple[str, ...]
    """Prints when the job ends; () if there is no such command."""
    requeue: tuple[str, ...]
    """Puts the job back into the queue; () if its exit code does."""

    def __str__(self) -> str:
        return f"{self.scheduler} job {self.job_id}" if self.job_id else self.scheduler


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


class Job(Struct, frozen=True, kw_only=True):
    """The options of a job by subject, as they are settled, and what no option says."""

    workers: Workers
    """``nnodes`` counts the nodes that work, without spares; ``cluster`` is the one whose variables
    were read, or "none"; ``hosts`` are those of the option or of the cluster, by rank, or ()."""
    rendezvous: Rendezvous
    """``master_port`` is None on one node, for a free port at each attempt, or for one of
    ``port_candidates``."""
    join: Join
    failures: Failures
    elasticity: Elasticity
    suspending: Suspending
    starting: Starting
    placing: Placing
    output: Output
    files: Files
    """``log_dir`` is None: no log files."""

    program: Program
    """``python`` is the path of the interpreter; ``env`` has the variables of all sources."""

    script: WorkerProgram
    signals_to_handle: str
    """TORCHELASTIC_SIGNALS_TO_HANDLE of the workers; the launcher handles all signals anyway."""

    tasks: TaskLayout | None = None
    """The cluster's; None: this agent starts all workers of its node."""
    numa_node: int | None = None
    """The one NUMA node that the job may use; None: all."""
    unclear: str = ""
    """What to type if the cluster's ranks could be those of nodes or of workers; "" if only one is
    possible. With one worker on each node, both are the same."""
    port_candidates: tuple[int, ...] = ()
    """The cluster's ports to try in this order; () if ``master_port`` is set."""
    token: str | None = None
    """The secret itself; never printed."""
    scheduler: SchedulerJob | None = None
    """The scheduler's job that this job runs in; None: none."""
    ends_at: float | None = None
    """When the scheduler ends it, in seconds since the epoch; None: unknown, or not needed."""
    resumed: int = 0
    """How often the scheduler has started the job again."""
    kept_attempts: int = 0
    """Attempts of this run whose logs an earlier job has left in ``log_dir``."""
    is_merged: bool = False
    """The process that has started all agents by ssh prints what they print."""
    coloured: bool = False
    """Workers print to a terminal that shows colours, and to no file."""
    workerlog: bool = False
    """Paddle's: both streams of a worker go to one log file, with a link by local rank."""
    as_torchrun: bool = False
    """clusterrun was called by the name torchrun, and has torchrun's defaults, such as
    OMP_NUM_THREADS and the names of log files."""
    services: "tuple[Service, ...]" = ()
    """Programs that run beside the main one, in the file's order."""
    main_nodes: RankSet | None = None
    """The nodes of the main program, where there are services; None: all that have a GPU left for it."""
    given: Given = Given()
    origins: Mapping[str, str] = {}
    """Where each value was set, by the name of its option or field; ``env.NAME`` for a variable."""

    def fact(self, name: str) -> Setting[Any]:
        """Return the value of a field, or of an option of a subject, with its origin, for messages."""
        if hasattr(self, name):
            return Setting(getattr(self, name), self.origin(name))
        subject = getattr(self, OPTIONS[name].subject.__name__.lower())
        return Setting(getattr(subject, name), self.origin(name))

    def origin(self, name: str) -> str:
        """Return where a value was set; "default" if nobody has set it."""
        return self.origins.get(name, "default")

    @property
    def env(self) -> dict[str, str]:
        """Variables for the workers, by name."""
        return dict(self.program.env)

    @property
    def nnodes(self) -> int:
        """The number of nodes that work; the most, if MIN:MAX is given."""
        return self.workers.nnodes.most

    @property
    def agents(self) -> int:
        """The number of agents in the job, spares included."""
        return self.nnodes + self.elasticity.spares if self.tasks is None else self.tasks.size

    @property
    def agent_unit(self) -> str:
        """What an agent is for its user: "node", or "task" if its node has several."""
        return "node" if self.tasks is None else "task"

    @property
    def survives_node_loss(self) -> bool:
        """Whether the job may go on without a lost node."""
        has_rules = (
            self.elasticity.spares > 0 or self.elasticity.rejoin_timeout > 0 or self.is_elastic
        )
        return self.agents > 1 and has_rules

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes follows losses and newcomers, from MIN to MAX."""
        # With a task for each worker, the scheduler has started all of them.
        return self.workers.nnodes.fewest < self.nnodes and self.tasks is None

    @property
    def active_hang_timeout(self) -> float:
        """``hang_timeout``; 0.0: never, as a user may be in pdb for hours."""
        return 0.0 if self.failures.pdb else self.failures.hang_timeout or 0.0

    @property
    def last_call(self) -> LastCall | None:
        """When the job starts with fewer than ``nnodes`` nodes; None: never."""
        if self.elasticity.spares > 0:
            return LastCall(self.nnodes, self.join.last_call_timeout)
        if not self.is_elastic:
            return None
        return LastCall(self.workers.nnodes.fewest, self.join.last_call_timeout)

    @property
    def agent_rank(self) -> int | None:
        """This agent's rank among them; None: not given."""
        return self.workers.node_rank if self.tasks is None else self.tasks.rank


OWN_SUBJECTS = tuple(each for each in Job.__annotations__.values() if each in SUBJECTS)
"""The subjects that a job has as they are settled."""
