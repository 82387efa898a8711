"""The shape of the world: how many nodes, which of them this is, how many workers it starts.

One source decides it as a whole. Flags, variables and the job file may repeat what the cluster
says; where they say otherwise, they have to say it all, and then nothing is taken from the cluster.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import TaskLayout, WorkerCount
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.detection import NO_CLUSTER, detect
from clusterrun.sources.options.rows.meeting import LOCAL_ADDR, MASTER_ADDR, RDZV_ENDPOINT
from clusterrun.sources.options.rows.placing import GPUS_PER_WORKER
from clusterrun.sources.options.rows.workers import (
    CLUSTER,
    DEVICES,
    HOSTFILE,
    HOSTS,
    NNODES,
    NODE_RANK,
    NPROC_PER_NODE,
    USE_PADDLECLOUD,
)
from clusterrun.sources.options.table import FEWEST_NODES
from clusterrun.sources.other_launchers.torchrun_lines import default_workers
from clusterrun.sources.settings import Settings, find, settings_from_exports, value_of

Workers = Fact[int | WorkerCount]


class Wish(Struct, frozen=True):
    """What flags, variables and the job file say of the shape; None: nothing."""

    nnodes: Fact[int] | None
    node_rank: Fact[int | None] | None
    nproc_per_node: Workers | None
    has_address: bool
    """They say where node 0 is."""
    otherwise: Workers = Fact(NPROC_PER_NODE.default, "default")
    """Workers where neither they nor the cluster say anything."""
    meets_anywhere: bool = False
    """By an endpoint that all nodes know, which gives out the ranks itself."""

    @property
    def is_whole(self) -> bool:
        """Whether they give this process a place in the job."""
        return self.nnodes is not None and (self.nnodes.value == 1 or self.node_rank is not None)


class Shape(Struct, frozen=True):
    """The shape of the world as far as one node can know it before it joins."""

    nnodes: Fact[int]
    node_rank: Fact[int | None]
    nproc_per_node: Workers
    hosts: Fact[tuple[str, ...]] = Fact((), "default")
    tasks: Fact[TaskLayout | None] = Fact(None, "default")
    place: Place | None = None
    """The cluster's word, where that is what holds."""
    cluster: Fact[str] = Fact(NO_CLUSTER, "default")
    """Whose variables were read, whether they hold or not."""
    run_id: Fact[str] | None = None
    """The cluster's, where all nodes have it."""
    first_host: Fact[str | None] = Fact(None, "default")
    """Of the hosts that the user lists."""
    numa_node: Fact[int | None] = Fact(None, "default")
    """The cluster's, whoever else decides the shape: what is outside of it is another job's."""
    unclear: Fact[str] = Fact("", "default")
    """The cluster's, where its ranks hold."""
    warnings: tuple[str, ...] = ()

    @property
    def agents(self) -> int:
        """How many clusterruns make up the job."""
        return self.nnodes.value if self.tasks.value is None else self.tasks.value.size


def find_shape(sources: Sequence[Settings], inputs: Inputs, *, is_nested: bool) -> Shape:
    """Return the shape by all that is said.

    Args:
        sources: what flags, variables and the job file say.
        inputs: where to look for a cluster.
        is_nested: we are inside a worker, whose place in the cluster is not ours: nobody is
            listened to unless ``--cluster`` says so.

    Raises:
        UsageError: what is said can't all be meant, or there is no such rank.

    """
    asked = value_of(CLUSTER, sources)
    cloud = find(USE_PADDLECLOUD, sources)
    if cloud and cloud.value and not asked.value:
        asked = Fact("paddle", cloud.origin)
    if is_nested and not asked.value:
        asked = Fact(NO_CLUSTER, "inside a worker")
    listed = _listed(sources, inputs)
    inputs = replace(inputs, nnodes=listed.nnodes or find(NNODES, sources))
    cluster, place = detect(asked, inputs)
    said = (*sources, settings_from_exports(inputs.variables))
    wish = Wish(
        nnodes=_narrowed(inputs.nnodes, find(FEWEST_NODES, sources), place),
        node_rank=find(NODE_RANK, sources) or listed.node_rank,
        nproc_per_node=find(NPROC_PER_NODE, sources) or listed.workers,
        has_address=bool(
            find(MASTER_ADDR, said) or find(RDZV_ENDPOINT, said) or listed.hosts.value
        ),
        otherwise=default_workers(inputs.process.called),
        meets_anywhere=bool(find(RDZV_ENDPOINT, sources)),
    )
    numa_node = place.numa_node if place else Fact(None, "default")
    shape = replace(settle_shape(wish, place), cluster=cluster, numa_node=numa_node)
    if not listed.hosts.value:
        return shape
    first = Fact(listed.hosts.value[0], listed.hosts.origin)
    return replace(shape, hosts=listed.hosts, first_host=first)


class _Listed(Struct, frozen=True):
    """What a list of hosts, or of devices, says of the shape."""

    hosts: Fact[tuple[str, ...]] = Fact((), "default")
    nnodes: Fact[int] | None = None
    node_rank: Fact[int | None] | None = None
    workers: Workers | None = None


def _listed(sources: Sequence[Settings], inputs: Inputs) -> _Listed:
    devices = find(DEVICES, sources)
    each = find(GPUS_PER_WORKER, sources)
    per_worker = (each and each.value) or 1
    workers = Fact(max(1, len(devices.value) // per_worker), devices.origin) if devices else None
    if not find(HOSTS, sources) and not find(HOSTFILE, sources):
        return _Listed(workers=workers)
    from clusterrun.sources.hosts.listed_hosts import find_listed
    from clusterrun.sources.hosts.own_host import own_rank

    listed = find_listed(sources)
    if listed is None:
        return _Listed(workers=workers)
    hosts, nnodes, fewest = listed.hosts, find(NNODES, sources), find(FEWEST_NODES, sources)
    if nnodes and fewest and not fewest.value <= len(hosts.value) <= nnodes.value:
        raise UsageError(
            f"nnodes is {nnodes}, and {hosts.origin} lists {len(hosts.value)}",
            f"leave {nnodes.origin} out",
        )
    own_address = find(LOCAL_ADDR, sources)
    here = (own_address and own_address.value) or inputs.process.host
    said = find(NODE_RANK, sources)
    rank = said or own_rank(hosts, here, inputs.process.addresses)
    name = hosts.value[rank.value or 0] if (rank.value or 0) < len(hosts.value) else ""
    return _Listed(
        hosts=hosts,
        nnodes=Fact(len(hosts.value), hosts.origin),
        node_rank=Fact(rank.value, rank.origin),
        workers=workers or listed.slots.get(name),
    )


def _narrowed(
    most: Fact[int] | None, fewest: Fact[int] | None, place: Place | None
) -> Fact[int] | None:
    """Return how many nodes are wished for: of ``MIN:MAX`` as many as the cluster has."""
    if most is None or fewest is None or place is None or place.ambiguous_rank_hint.value:
        return most
    is_within = fewest.value <= place.nnodes.value <= most.value
    return Fact(place.nnodes.value, most.origin) if is_within else most


def settle_shape(wish: Wish, place: Place | None) -> Shape:
    """Return the shape by the cluster or, where that says nothing or is overruled, by the wish.

    Raises:
        UsageError: the two can't both be meant, or there is no such rank.

    """
    if place is None or _gives_way(place, wish):
        shape = _wished(wish)
    elif place.obstacle is not None:
        raise place.obstacle
    elif _agree(wish, place):
        shape = _given(wish, place)
    else:
        shape = _overruled(wish, place)
    _expect_rank(shape)
    return shape


def _gives_way(place: Place, wish: Wish) -> bool:
    # Where nodes meet at an endpoint, they get their ranks there, and RANK is nobody's business.
    meets = wish.nnodes is not None and wish.meets_anywhere and place.obstacle is None
    return place.yields_to_options and (wish.is_whole or meets)


def _agree(wish: Wish, place: Place) -> bool:
    same_nodes = wish.nnodes is None or wish.nnodes.value == place.nnodes.value
    same_rank = wish.node_rank is None or wish.node_rank.value == place.node_rank.value
    return same_nodes and same_rank


def _wished(wish: Wish) -> Shape:
    return Shape(
        nnodes=wish.nnodes or Fact(NNODES.default, "default"),
        node_rank=wish.node_rank or Fact(None, "default"),
        nproc_per_node=wish.nproc_per_node or wish.otherwise,
    )


def _given(wish: Wish, place: Place) -> Shape:
    shape = _wished(wish)
    return Shape(
        nnodes=wish.nnodes or place.nnodes,
        node_rank=wish.node_rank or place.node_rank,
        nproc_per_node=_workers_of_place(wish, place) or shape.nproc_per_node,
        hosts=place.hosts,
        tasks=place.tasks,
        place=place,
        run_id=place.run_id,
        unclear=place.ambiguous_rank_hint,
        warnings=place.warnings,
    )


def _workers_of_place(wish: Wish, place: Place) -> Workers | None:
    tasks, wished = place.tasks.value, wish.nproc_per_node
    if tasks is None:
        return wished or place.nproc_per_node
    if wished and isinstance(wished.value, int) and wished.value not in {1, tasks.local_size}:
        raise _two_starters(wished, place)
    return Fact(1, place.tasks.origin)


def _overruled(wish: Wish, place: Place) -> Shape:
    """Return the shape that is wished for against the cluster's."""
    differences = tuple(_differences(wish, place))
    if not (place.yields_to_options or _is_clear(wish)):
        said = [fact.origin for fact in (wish.nnodes, wish.node_rank) if fact]
        raise UsageError(
            "; ".join(differences),
            f"leave {' and '.join(said)} out, or say it all: --nnodes, --node-rank, --master-addr",
        )
    shape = _wished(wish)
    if place.tasks.value is not None and shape.nproc_per_node.value != 1:
        raise _two_starters(shape.nproc_per_node, place)
    nnodes = wish.nnodes or place.nnodes
    return replace(
        shape,
        nnodes=nnodes,
        run_id=place.run_id if nnodes.value > 1 else None,
        warnings=()
        if place.yields_to_options
        else tuple(f"{it}: the former holds" for it in differences),
    )


def _is_clear(wish: Wish) -> bool:
    """Whether all is said: where half of it came from the cluster, two nodes could be the same."""
    alone = wish.nnodes is not None and wish.nnodes.value == 1
    return alone or (wish.node_rank is not None and wish.has_address)


def _differences(wish: Wish, place: Place) -> Iterator[str]:
    if wish.nnodes and wish.nnodes.value != place.nnodes.value:
        yield f"nnodes is {wish.nnodes} and {place.nnodes}"
    if wish.node_rank and wish.node_rank.value != place.node_rank.value:
        yield f"node_rank is {wish.node_rank} and {place.node_rank}"


def _two_starters(wished: Workers, place: Place) -> UsageError:
    count = wished.value if isinstance(wished.value, int) else wished.value.value
    tasks = place.tasks.value
    return UsageError(
        f"nproc_per_node is {count} ({wished.origin}), but this is one of"
        f" {tasks.local_size if tasks else 1} tasks on its node ({place.tasks.origin}),"
        " each of which would start as many",
        "have one task on each node:\n  srun --ntasks-per-node=1 clusterrun ...\n"
        "or one worker in each task: leave the flags for nodes, ranks and workers out",
    )


def _expect_rank(shape: Shape) -> None:
    rank, nodes = shape.node_rank.value, shape.nnodes.value
    if rank is not None and rank >= nodes:
        raise UsageError(
            f"node_rank is {shape.node_rank}, but nnodes is {shape.nnodes}",
            f"give a rank from 0 to {nodes - 1}" if nodes > 1 else "give --nnodes too",
        )
