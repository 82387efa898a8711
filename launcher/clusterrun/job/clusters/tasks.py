"""Tasks of launchers such as mpirun: one task for each node, or one for each worker.

A launcher sets the rank of a task among all tasks and among the tasks of its node, but not the rank
of the node, which follows from these.
"""

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import Found, check_rank, first_host
from clusterrun.job.declarations import Setting
from clusterrun.job.job import TaskLayout
from clusterrun.job.values import LOOPBACK


class StartCommands(Struct, frozen=True):
    """Commands that start tasks, with ``{size}`` and ``{nodes}`` for the numbers of tasks and nodes."""

    all_tasks: str
    one_per_node: str


class TaskNumbers(Struct, frozen=True):
    """The numbers that a launcher sets for a task."""

    starter: StartCommands
    rank: Setting[int]
    size: Setting[int]
    local_rank: Setting[int]
    local_size: Setting[int]
    """The number of tasks on this node."""
    nodes: Setting[int] | None = None
    node_rank: Setting[int] | None = None
    max_nodes: Setting[int] | None = None
    """The number of nodes in the allocation; some may have no task."""

    @property
    def node_count(self) -> int:
        return self.nodes.value if self.nodes else self.size.value // self.local_size.value

    def command(self, template: str) -> str:
        """Return a command of ``starter`` with the numbers of this job."""
        return template.format(size=self.size.value, nodes=self.node_count)


def task_placement(
    task: TaskNumbers,
    *,
    hosts: Setting[tuple[str, ...]] | None = None,
    address: Setting[str] | None = None,
    run_id: Setting[str] | None = None,
    secret: Setting[str] | None = None,
) -> Found:
    """Return the ranks of this task: it is its node's only task, or one of several.

    ``hosts`` are ignored if their number differs from that of the nodes. ``address`` is the host of
    task 0.

    Raises:
        UsageError: the numbers disagree, or nodes have different numbers of tasks.

    """
    check_rank(task.rank, task.size)
    check_rank(task.local_rank, task.local_size)
    nodes = _nodes(task)
    node_rank = _node_rank(task, nodes)
    if hosts and len(hosts.value) != nodes.value:
        hosts = None
    if nodes.value == 1:
        address = Setting(LOOPBACK, nodes.origin)
    found = Found(
        nnodes=nodes,
        node_rank=task.rank,
        hosts=hosts,
        master_addr=address or first_host(hosts),
        run_id=run_id,
        secret=secret,
    )
    if nodes.value == task.size.value:
        return found
    layout = TaskLayout(
        rank=GlobalRank(task.rank.value),
        size=task.size.value,
        local_rank=LocalRank(task.local_rank.value),
        local_size=task.local_size.value,
        node_rank=NodeRank(node_rank.value),
        nodes=nodes.value,
        all_tasks=task.command(task.starter.all_tasks),
        one_per_node=task.command(task.starter.one_per_node),
    )
    return replace(found, node_rank=node_rank, tasks=Setting(layout, task.local_size.origin))


def _nodes(task: TaskNumbers) -> Setting[int]:
    size, local_size, nodes = task.size, task.local_size, task.node_count
    exceeds_allocation = task.max_nodes is not None and nodes > task.max_nodes.value
    if nodes * local_size.value != size.value or exceeds_allocation:
        raise _uneven(task)
    return task.nodes or Setting(nodes, f"{size.origin}, {local_size.origin}")


def _node_rank(task: TaskNumbers, nodes: Setting[int]) -> Setting[int]:
    if task.node_rank is not None:
        check_rank(task.node_rank, nodes)
        return task.node_rank
    rank, local_rank, local_size = task.rank.value, task.local_rank.value, task.local_size.value
    origin = f"{task.rank.origin}, {task.local_size.origin}"
    if rank % local_size == local_rank and rank // local_size < nodes.value:
        return Setting(rank // local_size, origin)
    is_round_robin = rank // nodes.value == local_rank
    if not is_round_robin:
        raise _uneven(task)
    # Some other tasks may have numbers that both orders have, and take theirs for the usual order.
    if any(
        each % local_size == each // nodes.value and each // local_size != each % nodes.value
        for each in range(task.size.value)
    ):
        raise _round_robin(task)
    return Setting(rank % nodes.value, origin)


def _round_robin(task: TaskNumbers) -> UsageError:
    return UsageError(
        f"{task.rank.origin} is {task.rank.value} and {task.local_rank.origin} is"
        f" {task.local_rank.value}: tasks are numbered round robin over the nodes, so the rank of"
        " some nodes is unknown",
        "start one task on each node, which starts one worker per GPU:\n"
        f"  {task.command(task.starter.one_per_node)}\n"
        "or number the tasks node by node",
    )


def _uneven(task: TaskNumbers) -> UsageError:
    return UsageError(
        f"{task.size.origin} is {task.size.value} and {task.local_size.origin} is"
        f" {task.local_size.value}: nodes have different numbers of tasks, so the rank of this"
        " node is unknown",
        "start one task on each node, which starts one worker per GPU:\n"
        f"  {task.command(task.starter.one_per_node)}\n"
        "or the same number of tasks on each node, or ignore the cluster with --cluster none",
    )
