"""What a cluster has set for this process, and how its variables are read."""

from collections import UserDict

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import TaskLayout
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess
from clusterrun.job.values import WorkerCount

WITHOUT_CLUSTER = "correct the variables, or ignore the cluster with --cluster none"

Workers = Setting[int] | Setting[WorkerCount] | Setting[int | WorkerCount]


class Launch(Struct, frozen=True):
    """What a cluster's answer depends on besides its variables."""

    process: ThisProcess
    line: CommandLine
    """As it was typed, for hints."""
    nnodes: Setting[int] | None = None
    """As set by an option, for clusters that do not set it; None: not set."""
    is_drawn: bool = False
    """The job only shows where its workers would run on this machine: it need not be possible here."""


class Found(Struct, frozen=True):
    """What a cluster knows of this process; None: it does not say.

    The shape of a job (nodes, ranks, hosts, workers) is taken from the cluster as a whole, or not at
    all.
    """

    nnodes: Setting[int] | None = None
    node_rank: Setting[int] | None = None
    hosts: Setting[tuple[str, ...]] | None = None
    """Names of the nodes by rank."""
    tasks: Setting[TaskLayout] | None = None
    """The rank of this task among all, if the cluster starts one task per worker."""
    nproc_per_node: Setting[int] | None = None
    master_addr: Setting[str] | None = None
    no_address: str = ""
    """Why the hosts that the cluster names do not say where node 0 is; "": nothing to say."""
    ports: Setting[tuple[int, ...]] | None = None
    """Ports to try in this order, the same on all nodes."""
    ignored_exports: tuple[str, ...] = ()
    """Which of MASTER_ADDR and MASTER_PORT to ignore, as the cluster has better values."""
    numa_node: Setting[int] | None = None
    """The one NUMA node of its machine that the job may use; None: all."""
    run_id: Setting[str] | None = None
    """The same on all nodes, and different for every other job."""
    secret: Setting[str] | None = None
    """A text that every process of the job knows and no other process.

    Only from a cluster that starts all processes itself: one that the user starts elsewhere would
    not know the secret.
    """
    unclear: Setting[str] | None = None
    """What to type, as the ranks may count nodes or workers; None: they count nodes.

    Both counts are equal as long as every node has one worker.
    """
    yields: bool = False
    """Options replace all this without a warning: all processes have the same variables."""
    obstacle: UsageError | None = None
    """Why this process cannot be a node of the job, unless options set its place."""
    elsewhere: str = ""
    """The warning for a job on this host alone, which is not one of the cluster's; "": it is."""
    warnings: tuple[str, ...] = ()
    cluster: Setting[str] = Setting("none", "default")
    """The cluster that was detected; set by ``detect``."""

    @property
    def agents(self) -> int:
        """The number of agents that the cluster has started."""
        if self.tasks:
            return self.tasks.value.size
        return self.nnodes.value if self.nnodes else 1


def node(
    nnodes: Setting[int],
    node_rank: Setting[int] | None,
    *,
    hosts: Setting[tuple[str, ...]] | None = None,
    nproc_per_node: Setting[int] | None = None,
    run_id: Setting[str] | None = None,
) -> Found:
    """Return what is found by a process that is one node.

    Raises:
        UsageError: the rank is not one of the nodes'.

    """
    if node_rank is not None:
        check_rank(node_rank, nnodes)
    return Found(
        nnodes=nnodes,
        node_rank=node_rank,
        hosts=hosts,
        nproc_per_node=nproc_per_node,
        master_addr=first_host(hosts),
        run_id=run_id,
    )


def unplaced(message: str, hint: str) -> Found:
    """Return what is found by a process that only options can place."""
    return Found(yields=True, obstacle=UsageError(message, hint))


def first_host(hosts: Setting[tuple[str, ...]] | None) -> Setting[str] | None:
    """Return the first host, which is node 0."""
    return Setting(hosts.value[0], hosts.origin) if hosts and hosts.value else None


def check_rank(rank: Setting[int], count: Setting[int]) -> None:
    """Check that ``rank`` is one of ``count``.

    Raises:
        UsageError: it is not.

    """
    if rank.value >= count.value:
        raise UsageError(
            f"{rank.origin} is {rank.value}, but must be less than {count.origin},"
            f" which is {count.value}",
            WITHOUT_CLUSTER,
        )


class Variables(UserDict[str, str]):
    """The environment. Methods that take several names read the first that is set and not empty."""

    def text(self, *names: str) -> Setting[str] | None:
        found = (Setting(self[name], name) for name in names if self.get(name))
        return next(found, None)

    def has_all(self, *names: str) -> bool:
        return all(self.get(name) for name in names)

    def number(self, *names: str) -> Setting[int] | None:
        """Return a number from 0; another text is a ``UsageError``."""
        found = self.text(*names)
        if found is None:
            return None
        if not (found.value.isascii() and found.value.isdigit()):
            raise UsageError(f"{found.origin}: {found.value!r} is not a number", WITHOUT_CLUSTER)
        return Setting(int(found.value), found.origin)

    def require(self, *names: str) -> Setting[int]:
        """Return a number from 0; if none of these is set, that is a ``UsageError``."""
        found = self.number(*names)
        if found is None:
            raise UsageError(
                f"{names[0]} is not set, but other variables of its cluster are",
                "pass it on to this process, or ignore the cluster with --cluster none",
            )
        return found

    def gpus(self, name: str) -> Setting[int] | None:
        """Return a number of GPUs; None if it is 0 or CUDA_VISIBLE_DEVICES has another number."""
        given = self.number(name)
        visible = self.get("CUDA_VISIBLE_DEVICES")
        if given is None or not given.value:
            return None
        if visible is not None and len(visible.split(",")) != given.value:
            return None
        return given

    def differ(self, one: str, other: str) -> bool:
        """Return whether both are set, and not to the same."""
        return self.has_all(one, other) and self[one] != self[other]
