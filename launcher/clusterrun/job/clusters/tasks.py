"""A task for each node or for each worker: what task_launchers give a task, and its place that follows.

They set for each task its rank among all tasks and among those of its node, but not its node's.
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
    """What to type to start tasks, with ``{size}`` and ``{nodes}`` for their numbers."""

    all_tasks: str
    one_per_node: str


class TaskNumbers(Struct, frozen=True):
    """The numbers that a task has from its launcher."""

    starter: StartCommands
    rank: Setting[int]
    size: Setting[int]
    local_rank: Setting[int]
    local_size: Setting[int]
    """Tasks on its own node."""
    nodes: Setting[int] | None = None
    node_rank: Setting[int] | None = None
    most_nodes: Setting[int] | None = None
    """The nodes of the allocation, some of which may have no task."""

    def to_type(self, text: str) -> str:
        """Return a text of the starter with the numbers of this job."""
        nodes = self.nodes.value if self.nodes else self.size.value // self.local_size.value
        return text.format(size=self.size.value, nodes=nodes)


def place_of(
    task: TaskNumbers,
    *,
    hosts: Setting[tuple[str, ...]] | None = None,
    address: Setting[str] | None = None,
    run_id: Setting[str] | None = None,
    secret: Setting[str] | None = None,
) -> Found:
    """Return the place of a node with one task, or of one task among several of its node.

    A list of ``hosts`` of another length than the nodes is ignored; ``address`` is the host of task 0.

    Raises:
        UsageError: the numbers contradict each other, or nodes have different numbers of tasks.

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
        all_tasks=task.to_type(task.starter.all_tasks),
        one_per_node=task.to_type(task.starter.one_per_node),
    )
    return replace(found, node_rank=node_rank, tasks=Setting(layout, task.local_size.origin))


def _nodes(task: TaskNumbers) -> Setting[int]:
    size, local_size = task.size, task.local_size
    nodes = task.nodes.value if task.nodes else size.value // local_size.value
    most = task.most_nodes.value if task.most_nodes else nodes
    if nodes * local_size.value != size.value or nodes > most:
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
    if is_round_robin:
        return Setting(rank % nodes.value, origin)
    raise _uneven(task)


def _uneven(task: TaskNumbers) -> UsageError:
    return UsageError(
        f"{task.size.origin} is {task.size.value} and {task.local_size.origin} is"
        f" {task.local_size.value}: nodes have different numbers of tasks, so the rank of this"
        " node is unknown",
        "start one task on each node, which starts one worker per GPU:\n"
        f"  {task.to_type(task.starter.one_per_node)}\n"
        "or the same number of tasks on each node, or ignore the cluster with --cluster none",
    )
