"""Launchers that start tasks themselves, mpirun and its kin: which layout they were asked for.

They tell each task its place among all and among those of its node, and nothing of the nodes.
"""

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.domain.ranks import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, expect_rank

LOOPBACK = "127.0.0.1"

NO_HOSTS: Fact[tuple[str, ...]] = Fact((), "default")
NOWHERE: Fact[str | None] = Fact(None, "default")


class Task(Struct, frozen=True):
    """What a task knows of itself."""

    rank: Fact[int]
    size: Fact[int]
    local_rank: Fact[int]
    local_size: Fact[int]
    """Tasks on its own node."""
    nodes: Fact[int] | None = None
    """How many there are, where something tells."""
    node_rank: Fact[int] | None = None
    """Which of them it is on, where something tells."""
    most_nodes: Fact[int] | None = None
    """More there are not; some may have no task."""


def place_of(
    task: Task,
    *,
    hosts: Fact[tuple[str, ...]] = NO_HOSTS,
    master_addr: Fact[str | None] = NOWHERE,
    run_id: Fact[str] | None = None,
    secret: Fact[str] | None = None,
) -> Place:
    """Return the place of a node with one task, or of the one task among several of its node.

    Args:
        task: what it knows of itself.
        hosts: its job's hosts; what has another number of them than there are nodes is no list.
        master_addr: where task 0 is.
        run_id: what all tasks of the job have in common, and no other job.
        secret: what they know, and nobody who does not know of the job.

    Raises:
        UsageError: the numbers can't all be true, or nodes have different numbers of tasks.

    """
    expect_rank(task.rank, task.size)
    expect_rank(task.local_rank, task.local_size)
    nodes = _nodes(task)
    known = hosts if len(hosts.value) == nodes.value else NO_HOSTS
    if nodes.value == 1:
        # Whose name need not resolve.
        master_addr = Fact(LOOPBACK, nodes.origin)
    elif master_addr.value is None and known.value:
        master_addr = Fact(known.value[0], known.origin)
    per_node = nodes.value == task.size.value
    return Place(
        nnodes=nodes,
        node_rank=task.rank if per_node else _node_rank(task, nodes),
        hosts=known,
        tasks=Fact(None, "default") if per_node else _layout(task, nodes),
        master_addr=master_addr,
        run_id=run_id,
        secret=secret,
    )


def _layout(task: Task, nodes: Fact[int]) -> Fact[TaskLayout | None]:
    layout = TaskLayout(
        rank=GlobalRank(task.rank.value),
        size=task.size.value,
        local_rank=LocalRank(task.local_rank.value),
        local_size=task.local_size.value,
        node_rank=NodeRank(_node_rank(task, nodes).value or 0),
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


def _node_rank(task: Task, nodes: Fact[int]) -> Fact[int | None]:
    if task.node_rank is not None:
        expect_rank(task.node_rank, nodes)
        return task.node_rank
    rank, local_rank, local_size = task.rank.value, task.local_rank.value, task.local_size.value
    origin = f"{task.rank.origin}, {task.local_size.origin}"
    if rank % local_size == local_rank and rank // local_size < nodes.value:
        return Fact(rank // local_size, origin)
    # Dealt out to the nodes in turn.
    if rank // nodes.value == local_rank:
        return Fact(rank % nodes.value, origin)
    raise _uneven(task)


def _uneven(task: Task) -> UsageError:
    return UsageError(
        f"{task.size.origin} is {task.size.value}, and {task.local_size.origin}"
        f" {task.local_size.value}: nodes have different numbers of tasks, and nothing tells"
        " which node this is",
        "start as many tasks on each node, or one on each, which starts a worker for each GPU:\n"
        "  mpirun --map-by ppr:1:node clusterrun ...\n" + WITHOUT_CLUSTER,
    )
