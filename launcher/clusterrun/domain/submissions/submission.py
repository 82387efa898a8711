"""A job as it is submitted: what is asked of a scheduler, and what runs on each node."""

from enum import Enum

from msgspec import Struct

from clusterrun.domain.submissions.pods import PodRequest
from clusterrun.job.declaring import Fact


class Gpus(Struct, frozen=True):
    """GPUs of one node."""

    number: int
    model: str = ""
    """As the scheduler calls it, such as ``h100``; "": any."""

    def __str__(self) -> str:
        """Return the value as typed: ``h100:8``."""
        return f"{self.model}:{self.number}" if self.model else str(self.number)


class DependencyKind(Enum):
    """What must have become of other jobs before this one may start."""

    AFTER = "after"
    """They have started."""

    AFTER_OK = "afterok"
    """They have ended with exit code 0."""

    AFTER_NOT_OK = "afternotok"
    """They have failed."""

    AFTER_ANY = "afterany"
    """They have ended."""


class Dependency(Struct, frozen=True):
    """One condition; all of a job's must hold."""

    kind: DependencyKind
    ids: tuple[str, ...]


class SignalBeforeEnd(Struct, frozen=True):
    """A signal that the scheduler sends before it ends the job."""

    name: str
    """Without SIG: ``USR1``."""
    seconds: int
    """How long before the end."""


class ArrayRange(Struct, frozen=True):
    """The numbers of a job array: FIRST to LAST in steps."""

    first: int
    last: int
    step: int = 1


class JobArray(Struct, frozen=True):
    """The job is run once for each number."""

    ranges: tuple[ArrayRange, ...]
    at_once: int | None = None
    """At most this many run at the same time; None: no limit."""


class ContainerRuntime(Enum):
    """What starts a container under a batch scheduler."""

    PYXIS = "pyxis"
    """The plugin of Slurm: ``srun --container-image``."""

    APPTAINER = "apptainer"


class NodeCommand(Struct, frozen=True):
    """The command line of clusterrun on each node."""

    launcher: tuple[str, ...]
    """The words that start clusterrun: its path, or its name in a container."""
    options: tuple[tuple[str, ...], ...]
    """Its options, each with its values: ``("--max-restarts", "2")``."""
    env: str
    """What ``--env`` says, as ``ENV_VARIABLE`` has it; "": nothing."""
    words: tuple[str, ...]
    """SCRIPT and its arguments."""
    unset: tuple[str, ...]
    """Variables of the shell in which the job is submitted that clusterrun must not read."""


class Submission(Struct, frozen=True):
    """All that a scheduler is asked for. A field has the name of its option."""

    command: NodeCommand
    job_name: Fact[str]
    nodes: Fact[int]
    """All nodes, spares included."""
    fewest_nodes: Fact[int]
    """The fewest with which the job starts; otherwise as ``nodes``."""
    working_nodes: int
    """All nodes but spares."""
    outlives_nodes: bool
    """The job goes on without a lost node: the scheduler must not end it."""
    workers_per_node: int | None
    """None: one for each GPU."""
    gpus_per_node: Fact[Gpus | None]
    """None: all GPUs of whole nodes."""
    cpus_per_gpu: Fact[int | None]
    """Of a job without GPUs: for each worker. None: the scheduler's default."""
    memory_per_gpu: Fact[int | None]
    """In MiB; otherwise as ``cpus_per_gpu``."""
    time: Fact[int | None]
    """Seconds; None: the limit that the scheduler gives."""
    partition: Fact[str]
    """Of this and of all texts below, "" is not set."""
    account: Fact[str]
    qos: Fact[str]
    constraint: Fact[str]
    exclusive: Fact[bool]
    array: Fact[JobArray | None]
    dependency: Fact[tuple[Dependency, ...]]
    signal: Fact[SignalBeforeEnd | None]
    requeue: Fact[bool]
    """The scheduler may start the job again."""
    output: Fact[str]
    error: Fact[str]
    image: Fact[str]
    container: Fact[ContainerRuntime]
    mounts: Fact[tuple[str, ...]]
    """As the runtime writes them: ``SOURCE:TARGET``."""
    modules: Fact[tuple[str, ...]]
    setup: tuple[Fact[str], ...]
    """Lines of shell to run on the first node before the job starts."""
    directive: tuple[Fact[str], ...]
    """More directives, as in a script of the scheduler's, without the mark of its lines."""
    pods: PodRequest
    groups: "tuple[Submission, ...]" = ()
    """Groups of nodes for which different things are asked; () if all nodes are alike.

    With groups, the nodes of this are those of all of them; its CPUs and the like are the first one's.
    """

    @property
    def units(self) -> int | None:
        """How many GPUs, or workers without one, a node has; None: unknown."""
        gpus = self.gpus_per_node.value
        if gpus is None or gpus.number == 0:
            return self.workers_per_node or (1 if gpus else None)
        return gpus.number

    @property
    def cpus(self) -> int | None:
        """CPUs of each node; None: not set, or unknown."""
        per, units = self.cpus_per_gpu.value, self.units
        return None if per is None or units is None else per * units

    @property
    def memory(self) -> int | None:
        """MiB of each node; None: not set, or unknown."""
        per, units = self.memory_per_gpu.value, self.units
        return None if per is None or units is None else per * units
