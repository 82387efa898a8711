"""The shape of the world: the number of nodes, the rank of this one, and its number of workers.

Either the options or the cluster set all of it. Options may repeat what the cluster sets; if they
contradict it, they must be complete, and nothing is taken from the cluster.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.detection import NO_CLUSTER, detect
from clusterrun.sources.options.rows.workers import CLUSTER, NNODES, USE_PADDLECLOUD
from clusterrun.sources.settings import Settings, find, value_of
from clusterrun.sources.shape_options import ShapeOptions, Workers, read_shape_options


class Shape(Struct, frozen=True):
    """The shape of the world as far as one node can know it before it joins."""

    nnodes: Fact[int]
    node_rank: Fact[int | None]
    nproc_per_node: Workers
    hosts: Fact[tuple[str, ...]] = Fact((), "default")
    tasks: Fact[TaskLayout | None] = Fact(None, "default")
    place: Place | None = None
    """The cluster's, if it sets the shape."""
    cluster: Fact[str] = Fact(NO_CLUSTER, "default")
    """The cluster that was detected, even if options set the shape."""
    run_id: Fact[str] | None = None
    """The cluster's, if all nodes have it."""
    first_host: Fact[str | None] = Fact(None, "default")
    """Of the hosts that options list."""
    numa_node: Fact[int | None] = Fact(None, "default")
    """The cluster's, even if options set the shape: other NUMA nodes belong to other jobs."""
    unclear: Fact[str] = Fact("", "default")
    """``Place.ambiguous_rank_hint``, if the cluster sets the ranks."""
    warnings: tuple[str, ...] = ()

    @property
    def agents(self) -> int:
        return self.nnodes.value if self.tasks.value is None else self.tasks.value.size


def find_shape(sources: Sequence[Settings], inputs: Inputs, *, is_nested: bool) -> Shape:
    """Return the shape that options and the detected cluster set.

    A nested launch, inside a worker, has no place of its own in the cluster: none is detected,
    unless ``--cluster`` names it.
    """
    options = read_shape_options(sources, inputs)
    asked = _asked_cluster(sources, is_nested=is_nested)
    cluster, place = detect(asked, replace(inputs, nnodes=options.nnodes))
    shape = settle_shape(options.narrowed_to(place), place)
    shape = replace(shape, cluster=cluster, numa_node=place.numa_node if place else shape.numa_node)
    if not options.hosts.value:
        return shape
    first_host = Fact(options.hosts.value[0], options.hosts.origin)
    return replace(shape, hosts=options.hosts, first_host=first_host)


def _asked_cluster(sources: Sequence[Settings], *, is_nested: bool) -> Fact[str]:
    asked, paddlecloud = value_of(CLUSTER, sources), find(USE_PADDLECLOUD, sources)
    if asked.value:
        return asked
    if paddlecloud and paddlecloud.value:
        return Fact("paddle", paddlecloud.origin)
    return Fact(NO_CLUSTER, "inside a worker") if is_nested else asked


def settle_shape(options: ShapeOptions, place: Place | None) -> Shape:
    """Return the shape that the cluster sets or, without one or against it, the options."""
    if place is None or _yields(place, options):
        shape = _by_options(options)
    elif place.obstacle is not None:
        raise place.obstacle
    else:
        differences = tuple(_differences(options, place))
        shape = _against(options, place, differences) if differences else _by_place(options, place)
    _check_rank(shape)
    return shape


def _yields(place: Place, options: ShapeOptions) -> bool:
    # At an endpoint, nodes get their ranks from the coordinator, whatever RANK is.
    are_met = options.nnodes is not None and options.has_endpoint and place.obstacle is None
    return place.yields_to_options and (options.place_the_node or are_met)


def _by_options(options: ShapeOptions) -> Shape:
    return Shape(
        nnodes=options.nnodes or Fact(NNODES.default, "default"),
        node_rank=options.node_rank or Fact(None, "default"),
        nproc_per_node=options.nproc_per_node or options.default_workers,
    )


def _by_place(options: ShapeOptions, place: Place) -> Shape:
    return Shape(
        nnodes=options.nnodes or place.nnodes,
        node_rank=options.node_rank or place.node_rank,
        nproc_per_node=_workers(options, place),
        hosts=place.hosts,
        tasks=place.tasks,
        place=place,
        run_id=place.run_id,
        unclear=place.ambiguous_rank_hint,
        warnings=place.warnings,
    )


def _workers(options: ShapeOptions, place: Place) -> Workers:
    tasks, workers = place.tasks.value, options.nproc_per_node
    if tasks is None:
        return workers or place.nproc_per_node or options.default_workers
    if workers and isinstance(workers.value, int) and workers.value not in {1, tasks.local_size}:
        raise _too_many_starters(workers, tasks, place.tasks.origin)
    return Fact(1, place.tasks.origin)


def _against(options: ShapeOptions, place: Place, differences: Sequence[tuple[str, str]]) -> Shape:
    """Return the shape that options set against the cluster."""
    if not (place.yields_to_options or options.are_complete):
        origins = [fact.origin for fact in (options.nnodes, options.node_rank) if fact]
        raise UsageError(
            "; ".join(f"{value}, but the cluster has {other}" for value, other in differences),
            f"leave {' and '.join(origins)} out, or set all of --nnodes, --node-rank and"
            " --master-addr",
        )
    shape = _by_options(options)
    if place.tasks.value is not None and shape.nproc_per_node.value != 1:
        raise _too_many_starters(shape.nproc_per_node, place.tasks.value, place.tasks.origin)
    nnodes = options.nnodes or place.nnodes
    warnings = (f"{value}; the cluster's {other} is ignored" for value, other in differences)
    return replace(
        shape,
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


def _check_rank(shape: Shape) -> None:
    rank, nodes = shape.node_rank.value, shape.nnodes.value
    if rank is not None and rank >= nodes:
        raise UsageError(
            f"node_rank is {shape.node_rank}, but nnodes is {shape.nnodes}",
            f"give a rank from 0 to {nodes - 1}" if nodes > 1 else "give --nnodes too",
        )
