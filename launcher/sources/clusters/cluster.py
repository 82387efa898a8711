"""What a cluster is asked, and what it answers."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from launcher.domain.facts import Fact
from launcher.domain.job import TaskLayout
from launcher.errors import UsageError
from launcher.sources.process import ThisProcess
from launcher.sources.typed import Typed


class Surroundings(Struct, frozen=True):
    """What a cluster's answers are made from."""

    variables: Mapping[str, str]
    """The environment without what an outer launch left there."""
    process: ThisProcess
    typed: Typed


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
    run_id: Fact[str] | None = None
    """The same on all nodes, another for every other job; None: there is none."""
    tentative: bool = False
    """Holds only where nobody says more: the cluster doesn't tell one process from another."""
    obstacle: UsageError | None = None
    """Why this process can't be a node of the job, unless somebody says that it is."""
    warnings: tuple[str, ...] = ()


class Cluster(Protocol):
    """A scheduler or a platform."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the variable that shows that we run under it; "" where none does."""
        ...

    def place(self, around: Surroundings) -> Place:
        """Return the place of this process; a variable that is no good is a ``UsageError``."""
        ...
