"""What every cluster answers: whether this process runs under it, and its place in the job.

To add a cluster, write one file beside this one with a subclass of ``Cluster`` (``skypilot.py`` is
a short example), and add one line to ``DETECTION`` in ``detection.py``.
"""

from abc import ABC, abstractmethod

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout, WorkerCount
from clusterrun.errors import UsageError
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess
from clusterrun.sources.clusters.variables import Variables

LOOPBACK = "127.0.0.1"
"""Where the workers of a single node meet: the name of its host need not resolve."""


Workers = Fact[int | WorkerCount]


class Inputs(Struct, frozen=True):
    """What a cluster's answer is made from."""

    variables: Variables
    """The environment, without variables of an outer launch."""
    process: ThisProcess
    command_line: CommandLine
    nnodes: Fact[int] | None = None
    """As set by an option, for clusters that do not set it; None: not set."""
    at_endpoint: bool = False
    """An option has set an endpoint, perhaps for torchrun's backend that takes it for an address."""


class Place(Struct, frozen=True):
    """The place of this process in the job, as far as one node can know it before it joins.

    A cluster sets it, or options do. The shape of a job (nodes, ranks, hosts, workers) is taken from
    the cluster as a whole, or not at all.
    """

    nnodes: Fact[int] = Fact(1, "default")
    node_rank: Fact[int | None] = Fact(None, "default")
    hosts: Fact[tuple[str, ...]] = Fact((), "default")
    """Names of the nodes by rank; () if unknown."""
    tasks: Fact[TaskLayout | None] = Fact(None, "default")
    """The rank of this task among all, if the cluster starts one task per worker."""
    nproc_per_node: Workers | None = None
    """Workers on this node; None: the cluster does not set it."""
    master_addr: Fact[str | None] = Fact(None, "default")
    no_address: str = ""
    """Why the hosts that the cluster names do not say where node 0 is; "": nothing to say."""
    port_candidates: Fact[tuple[int, ...]] = Fact((), "default")
    ignored_exports: tuple[str, ...] = ()
    """Which of MASTER_ADDR and MASTER_PORT to ignore, as this place has better values."""
    numa_node: Fact[int | None] = Fact(None, "default")
    """The one NUMA node of its machine that the job may use; None: all."""
    run_id: Fact[str] | None = None
    """The same on all nodes, and different for every other job; None: unknown."""
    secret: Fact[str] | None = None
    """A text that every process of the job knows and no other process; None: there is none.

    Only from a cluster that starts all processes itself: one that the user starts elsewhere would
    not know the secret.
    """
    yields_to_options: bool = False
    """Options replace this place without a warning: all processes have the same variables."""
    obstacle: UsageError | None = None
    """Why this process cannot be a node of the job, unless options set its place."""
    unclear: Fact[str] = Fact("", "default")
    """What to type if the ranks may count nodes or workers; "" if they count nodes.

    Both counts are equal as long as every node has one worker.
    """
    cluster: Fact[str] = Fact("none", "default")
    """The cluster that was detected, even if options set the shape."""
    warnings: tuple[str, ...] = ()

    @property
    def agents(self) -> int:
        return self.nnodes.value if self.tasks.value is None else self.tasks.value.size


def no_place(message: str, hint: str) -> Place:
    """Return the place of a process that only options can place."""
    return Place(yields_to_options=True, obstacle=UsageError(message, hint))


class Cluster(ABC):
    """A scheduler or a platform, such as Slurm or SageMaker."""

    markers: tuple[str, ...] = ()
    """Variables that only processes of this cluster have, the best known first."""
    yields_to_options = False
    """Its place yields to options, so a variable or a file with a wrong value matters only without."""

    def detect(self, variables: Variables) -> str:
        """Return the variable that shows that this process runs under it; "" if none does."""
        return variables.first_set(*self.markers)

    @abstractmethod
    def place(self, inputs: Inputs) -> Place:
        """Return the place of this process; a variable with a wrong value is a ``UsageError``."""
