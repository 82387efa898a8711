"""Launchers that start tasks themselves (mpirun and others), and the place of such a task.

They set for each task its rank among all tasks and among those of its node, but not its node's.
"""

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import LOOPBACK, Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import Variables, check_rank

NO_HOSTS: Fact[tuple[str, ...]] = Fact((), "default")
NO_ADDRESS: Fact[str | None] = Fact(None, "default")


class Task(Struct, frozen=True):
    """The numbers that a task has from its launcher."""

    rank: Fact[int]
    size: Fact[int]
    local_rank: Fact[int]
    local_size: Fact[int]
    """Tasks on its own node."""
    nodes: Fact[int] | None = None
    node_rank: Fact[int] | None = None
    most_nodes: Fact[int] | None = None
    """The nodes of the allocation, some of which may have no task."""


class TaskLauncher(Cluster):
    """A launcher of tasks, by the names of its variables; several names: the first that is set."""

    rank: str
    size: str
    local_rank: str
    local_size: tuple[str, ...]
    node_rank: tuple[str, ...] = ()
    most_nodes: tuple[str, ...] = ()
    run_id: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()

    def detect(self, variables: Variables) -> str:
        return variables.first_set(self.rank)

    def place(self, inputs: Inputs) -> Place:
        """Return the place of the node, or of the task if its node has several."""
        variables = inputs.variables
        return place_of_task(
            self.task(variables),
            run_id=variables.text(*self.run_id),
            secret=variables.text(*self.secret),
        )

    def task(self, variables: Variables) -> Task:
        return Task(
            rank=variables.require(self.rank),
            size=variables.require(self.size),
            local_rank=variables.require(self.local_rank),
            local_size=variables.require(*self.local_size),
            node_rank=variables.number(*self.node_rank),
            most_nodes=variables.number(*self.most_nodes),
        )


def place_of_task(
    task: Task,
    *,
    hosts: Fact[tuple[str, ...]] = NO_HOSTS,
    master_addr: Fact[str | None] = NO_ADDRESS,
    run_id: Fact[str] | None = None,
    secret: Fact[str] | None = None,
) -> Place:
    """Return the place of a node with one task, or of one task among several of its node.

    A list of ``hosts`` of another length than the nodes is ignored; ``master_addr`` is the host of
    task 0.
    """
    check_rank(task.rank, task.size)
    check_rank(task.local_rank, task.local_size)
    nodes = _nodes(task)
    node_rank = _node_rank(task, nodes)
    if len(hosts.value) != nodes.value:
        hosts = NO_HOSTS
    if nodes.value == 1:
        master_addr = Fact(LOOPBACK, nodes.origin)
    elif master_addr.value is None and hosts.value:
        master_addr = Fact(hosts.value[0], hosts.origin)
    is_one_per_node = nodes.value == task.size.value
    return Place(
        nnodes=nodes,
        node_rank=task.rank if is_one_per_node else node_rank,
        hosts=hosts,
        tasks=Fact(None, "default") if is_one_per_node else _layout(task, nodes, node_rank),
        master_addr=master_addr,
        run_id=run_id,
        secret=secret,
    )


def _layout(task: Task, nodes: Fact[int], node_rank: Fact[int]) -> Fact[TaskLayout | None]:
    layout = TaskLayout(
        rank=GlobalRank(task.rank.value),
        size=task.size.value,
        local_rank=LocalRank(task.local_rank.value),
        local_size=task.local_size.value,
        node_rank=NodeRank(node_rank.value),
        nodes=nodes.value,
    )
    return Fact(layout, task.local_size.origin)


def _nodes(task: Task) -> Fact[int]:
    size, local_size = task.size, task.local_size
    nodes = task.nodes.value if task.nodes else size.value // local_size.value
    most = task.most_nodes.value if task.most_nodes else nodes
    if nodes * local_size.value != size.value or nodes > most:
        raise _uneven(task)
    return task.nodes or Fact(nodes, f"{size.origin}, {local_size.origin}")


def _node_rank(task: Task, nodes: Fact[int]) -> Fact[int]:
    if task.node_rank is not None:
        check_rank(task.node_rank, nodes)
        return task.node_rank
    rank, local_rank, local_size = task.rank.value, task.local_rank.value, task.local_size.value
    origin = f"{task.rank.origin}, {task.local_size.origin}"
    if rank % local_size == local_rank and rank // local_size < nodes.value:
        return Fact(rank // local_size, origin)
    is_round_robin = rank // nodes.value == local_rank
    if is_round_robin:
        return Fact(rank % nodes.value, origin)
    raise _uneven(task)


def _uneven(task: Task) -> UsageError:
    return UsageError(
        f"{task.size.origin} is {task.size.value} and {task.local_size.origin} is"
        f" {task.local_size.value}: nodes have different numbers of tasks, so the rank of this"
        " node is unknown",
        "start one task on each node, which starts one worker per GPU:\n"
        "  mpirun --map-by ppr:1:node clusterrun ...\n"
        "or the same number of tasks on each node, or ignore the cluster with --cluster none",
    )
