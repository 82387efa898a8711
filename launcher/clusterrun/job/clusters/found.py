"""What a cluster says about this process, and how its variables are read."""

from collections import UserDict

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import TaskLayout
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import ThisProcess

WITHOUT_CLUSTER = "correct the variables, or ignore the cluster with --cluster none"

GPU_LISTS = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    *("ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES"),
)
"""Variables that list the GPUs a process may use."""


class DetectionContext(Struct, frozen=True):
    """What a cluster function gets besides the variables."""

    process: ThisProcess
    line: CommandLine
    """The command line as typed, for hints."""
    nnodes: Setting[int] | None = None
    """The number of nodes that an option sets; None: no option sets it."""
    local_only: bool = False
    """Only this machine's plan is shown, so an error about the cluster becomes a warning."""


class Found(Struct, frozen=True):
    """What a cluster says about this process; a field is None if the cluster does not set it.

    Nodes, ranks, hosts and workers are all taken from the cluster, or all from options.
    """

    nnodes: Setting[int] | None = None
    node_rank: Setting[int] | None = None
    hosts: Setting[tuple[str, ...]] | None = None
    """Host names of the nodes, in the order of their ranks."""
    tasks: Setting[TaskLayout] | None = None
    """This task's ranks, if the cluster starts one task per worker."""
    nproc_per_node: Setting[int] | None = None
    master_addr: Setting[str] | None = None
    no_address_reason: str | None = None
    """Why the address of node 0 is unknown although the cluster names hosts."""
    ports: Setting[tuple[int, ...]] | None = None
    """Ports to try in this order; the same on all nodes."""
    ignored_exports: tuple[str, ...] = ()
    """Which of MASTER_ADDR and MASTER_PORT to ignore because the cluster has better values."""
    numa_node: Setting[int] | None = None
    """The only NUMA node of the machine that the job may use; None: it may use all."""
    run_id: Setting[str] | None = None
    """The same on all nodes; different for every other job."""
    secret: Setting[str] | None = None
    """A text that only processes of this job know.

    Set only if the cluster starts all agents: an agent that the user starts does not know it.
    """
    unclear: Setting[str] | None = None
    """The command lines to type, if the ranks may count nodes or workers; None: they count nodes.

    The two counts are equal if every node has one worker.
    """
    overridable: bool = False
    """Options replace all of this without a warning, because all processes have the same variables."""
    error: UsageError | None = None
    """Why this process cannot be a node of the job; raised unless options set nodes and ranks."""
    elsewhere_warning: str | None = None
    """The warning for a one-node job on this host; None if the host is one of the cluster's nodes."""
    warnings: tuple[str, ...] = ()
    cluster: Setting[str] = Setting("none", "default")
    """The detected cluster; set by ``detect``."""

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
    """Return what the cluster says to a process that is the only one of its node.

    Raises:
        UsageError: the rank is ``nnodes`` or more.

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
    """Return what is found if only options can set the nodes and this node's rank."""
    return Found(overridable=True, error=UsageError(message, hint))


def first_host(hosts: Setting[tuple[str, ...]] | None) -> Setting[str] | None:
    """Return the first host, which is node 0."""
    return Setting(hosts.value[0], hosts.origin) if hosts and hosts.value else None


def check_rank(rank: Setting[int], count: Setting[int]) -> None:
    """Check that ``rank`` is less than ``count``.

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
    """The environment. A method that takes several names reads the first that is set and not empty."""

    def text(self, *names: str) -> Setting[str] | None:
        found = (Setting(self[name], name) for name in names if self.get(name))
        return next(found, None)

    def has_all(self, *names: str) -> bool:
        return all(self.get(name) for name in names)

    def number(self, *names: str) -> Setting[int] | None:
        """Return a number from 0, or None if no name is set.

        Raises:
            UsageError: the text is not a number.

        """
        found = self.text(*names)
        if found is None:
            return None
        if not (found.value.isascii() and found.value.isdigit()):
            raise UsageError(f"{found.origin}: {found.value!r} is not a number", WITHOUT_CLUSTER)
        return Setting(int(found.value), found.origin)

    def require(self, *names: str) -> Setting[int]:
        """Return a number from 0.

        Raises:
            UsageError: no name is set, or the text is not a number.

        """
        found = self.number(*names)
        if found is None:
            raise UsageError(
                f"{names[0]} is not set, but other variables of its cluster are",
                "pass it on to this process, or ignore the cluster with --cluster none",
            )
        return found

    def gpus(self, name: str) -> Setting[int] | None:
        """Return a number of GPUs; None if it is 0 or differs from that of CUDA_VISIBLE_DEVICES or the like."""
        given = self.number(name)
        if given is None or not given.value:
            return None
        lists = (self[each].split(",") for each in GPU_LISTS if each in self)
        return given if all(len(each) == given.value for each in lists) else None
