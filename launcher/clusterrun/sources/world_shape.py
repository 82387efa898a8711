"""The shape of the world: the number of nodes, the rank of this one, and its number of workers.

Either the options or the cluster set all of it. Options may repeat what the cluster sets; if they
contradict it, they must be complete, and nothing is taken from the cluster.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.errors import UsageError
from clusterrun.job.sources import Layer, find, value_of
from clusterrun.sources.clusters.cluster import Inputs, Place, Workers
from clusterrun.sources.clusters.detection import NO_CLUSTER, detect
from clusterrun.sources.hosts.over_ssh import is_over_ssh
from clusterrun.sources.shape_options import ShapeOptions, read_shape_options


def find_place(sources: Sequence[Layer], inputs: Inputs, *, is_nested: bool) -> Place:
    """Return the place of this process in the world that options and the detected cluster set.

    A nested launch, inside a worker, has no place of its own in the cluster: none is detected,
    unless ``--cluster`` names it.
    """
    options = read_shape_options(sources, inputs)
    asked = _asked_cluster(sources, is_nested=is_nested)
    cluster, by_cluster = detect(asked, replace(inputs, nnodes=options.nnodes))
    if by_cluster is not None:
        _expect_one_starter(is_over_ssh(sources), cluster, by_cluster)
    place = replace(_settle(options.narrowed_to(by_cluster), by_cluster), cluster=cluster)
    if by_cluster is not None:
        # Even if options set the shape: other NUMA nodes belong to other jobs.
        place = replace(place, numa_node=by_cluster.numa_node)
    hosts = options.hosts
    if not hosts.value:
        return place
    # A list of hosts is made for this job, an export for any launcher.
    ignored = (*place.ignored_exports, "MASTER_ADDR")
    first = Fact(hosts.value[0], hosts.origin)
    return replace(place, hosts=hosts, master_addr=first, ignored_exports=ignored)


def _expect_one_starter(over_ssh: Fact[bool], cluster: Fact[str], place: Place) -> None:
    """Check that agents which a cluster has started do not start more of them by ssh.

    Raises:
        UsageError: they would, each of them on all hosts.

    """
    # A cluster that does not start all processes itself has no secret: there, one may use ssh.
    if over_ssh.value and place.secret is not None and place.agents > 1:
        raise UsageError(
            f"{over_ssh.origin} is ssh, but {cluster.value} has started {place.agents} agents of"
            f" this job ({cluster.origin})",
            "type --launcher none",
        )


def _asked_cluster(sources: Sequence[Layer], *, is_nested: bool) -> Fact[str]:
    asked, paddlecloud = value_of("cluster", sources), find("use_paddlecloud", sources)
    if asked.value:
        return asked
    if paddlecloud and paddlecloud.value:
        return Fact("paddle", paddlecloud.origin)
    return Fact(NO_CLUSTER, "inside a worker") if is_nested else asked


def _settle(options: ShapeOptions, by_cluster: Place | None) -> Place:
    """Return the place that the cluster sets or, without one or against it, the options."""
    if by_cluster is None or _yields(by_cluster, options):
        place = _by_options(options)
    elif by_cluster.obstacle is not None:
        raise by_cluster.obstacle
    elif differences := tuple(_differences(options, by_cluster)):
        place = _against(options, by_cluster, differences)
    else:
        place = _by_cluster(options, by_cluster)
    _check_rank(place)
    return place


def _yields(place: Place, options: ShapeOptions) -> bool:
    # At an endpoint, nodes get their ranks from the coordinator, whatever RANK is.
    are_met = options.nnodes is not None and options.has_endpoint and place.obstacle is None
    return place.yields_to_options and (options.place_the_node or are_met)


def _by_options(options: ShapeOptions) -> Place:
    return Place(
        nnodes=options.nnodes or Fact(1, "default"),
        node_rank=options.node_rank or Fact(None, "default"),
        nproc_per_node=options.nproc_per_node or options.default_workers,
    )


def _by_cluster(options: ShapeOptions, place: Place) -> Place:
    return replace(
        place,
        nnodes=options.nnodes or place.nnodes,
        node_rank=options.node_rank or place.node_rank,
        nproc_per_node=_workers(options, place),
    )


def _workers(options: ShapeOptions, place: Place) -> Workers:
    tasks, workers = place.tasks.value, options.nproc_per_node
    if tasks is None:
        return workers or place.nproc_per_node or options.default_workers
    if workers and isinstance(workers.value, int) and workers.value not in {1, tasks.local_size}:
        raise _too_many_starters(workers, tasks, place.tasks.origin)
    return Fact(1, place.tasks.origin)


def _against(options: ShapeOptions, place: Place, differences: Sequence[tuple[str, str]]) -> Place:
    """Return the place that options set against the cluster."""
    if not (place.yields_to_options or options.are_complete):
        origins = [fact.origin for fact in (options.nnodes, options.node_rank) if fact]
        raise UsageError(
            "; ".join(f"{value}, but the cluster has {other}" for value, other in differences),
            f"leave {' and '.join(origins)} out, or set all of --nnodes, --node-rank and"
            " --master-addr",
        )
    workers = options.nproc_per_node or options.default_workers
    if place.tasks.value is not None and workers.value != 1:
        raise _too_many_starters(workers, place.tasks.value, place.tasks.origin)
    nnodes = options.nnodes or place.nnodes
    warnings = (f"{value}; the cluster's {other} is ignored" for value, other in differences)
    return replace(
        _by_options(options),
        nnodes=nnodes,
        run_id=place.run_id if nnodes.value > 1 else None,
        warnings=() if place.yields_to_options else tuple(warnings),
    )


def _differences(options: ShapeOptions, place: Place) -> Iterator[tuple[str, str]]:
    if options.nnodes and options.nnodes.value != place.nnodes.value:
        yield f"nnodes is {options.nnodes}", str(place.nnodes)
    if options.node_rank and options.node_rank.value != place.node_rank.value:
        yield f"node_rank is {options.node_rank}", str(place.node_rank)


def _too_many_starters(workers: Workers, tasks: TaskLayout, tasks_origin: str) -> UsageError:
    count = workers.value if isinstance(workers.value, int) else workers.value.value
    return UsageError(
        f"nproc_per_node is {count} ({workers.origin}), but this node has {tasks.local_size} tasks"
        f" ({tasks_origin}), and each would start that many workers",
        "start one task on each node:\n  srun --ntasks-per-node=1 clusterrun ...\n"
        "or one worker in each task: leave out the options for nodes, ranks and workers",
    )


def _check_rank(place: Place) -> None:
    rank, nodes = place.node_rank.value, place.nnodes.value
    if rank is not None and rank >= nodes:
        raise UsageError(
            f"node_rank is {place.node_rank}, but nnodes is {place.nnodes}",
            f"give a rank from 0 to {nodes - 1}" if nodes > 1 else "give --nnodes too",
        )
