"""What a cluster is asked, and what it answers."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.errors import UsageError
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.this_process import ThisProcess


class Inputs(Struct, frozen=True):
    """What a cluster's answers are made from."""

    variables: Mapping[str, str]
    """The environment without what an outer launch left there."""
    process: ThisProcess
    typed: CommandLine
    nnodes: Fact[int] | None = None
    """What flags, variables and the job file say, for clusters that don't tell; None: nothing."""


class Place(Struct, frozen=True):
    """The place of this process in the job, as one cluster tells it.

    The shape of a job (nodes, ranks, hosts, workers) is taken from here as a whole, or not at all.
    """

    nnodes: Fact[int]
    node_rank: Fact[int | None]
    hosts: Fact[tuple[str, ...]]
    """Names of the nodes by rank; () where nothing tells."""
    tasks: Fact[TaskLayout | None] = Fact(None, "default")
    """This one task among all, where each worker has a task."""
    nproc_per_node: Fact[int] | None = None
    """Workers of this node; None: not the cluster's business."""
    master_addr: Fact[str | None] = Fact(None, "default")
    port_candidates: Fact[tuple[int, ...]] = Fact((), "default")
    own_exports: tuple[str, ...] = ()
    """Which of MASTER_ADDR and MASTER_PORT the cluster has set itself, and says better here."""
    numa_node: Fact[int | None] = Fact(None, "default")
    """The one NUMA node of its machine that the job may use; None: all."""
    run_id: Fact[str] | None = None
    """The same on all nodes, another for every other job; None: there is none."""
    secret: Fact[str] | None = None
    """What every process of the job knows, and nobody who does not know of the job; None: nothing.

    Only where the cluster starts all of them itself: one that the user has started elsewhere
    would not know it.
    """
    tentative: bool = False
    """Holds only where nobody says more: the cluster doesn't tell one process from another."""
    obstacle: UsageError | None = None
    """Why this process can't be a node of the job, unless somebody says that it is."""
    unclear: Fact[str] = Fact("", "default")
    """What to type where its ranks may count nodes or workers, which are the same with one worker
    on each node, and only then; "" where it is clear."""
    warnings: tuple[str, ...] = ()


def nowhere(obstacle: UsageError) -> Place:
    """Return the place of a process that can't be told from others: flags have to say it all."""
    return Place(
        nnodes=Fact(1, "default"),
        node_rank=Fact(None, "default"),
        hosts=Fact((), "default"),
        tentative=True,
        obstacle=obstacle,
    )


class Cluster(Protocol):
    """A scheduler or a platform."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the variable that shows that we run under it; "" where none does."""
        ...

    def place(self, inputs: Inputs) -> Place:
        """Return the place of this process; a variable that is no good is a ``UsageError``."""
        ...
