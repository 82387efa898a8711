"""What options set of the shape of the world: nodes, this node's rank, and workers."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.sources import Layer, find, from_exports, value_of
from clusterrun.job.torchrun import default_workers
from clusterrun.sources.clusters.cluster import Inputs, Place, Workers
from clusterrun.sources.hosts.over_ssh import is_over_ssh
from clusterrun.sources.spare_nodes import all_nodes, fewest_nodes


class ShapeOptions(Struct, frozen=True):
    """Values of options, of whatever source; None: not set."""

    nnodes: Fact[int] | None
    """Spares included."""
    fewest_nodes: Fact[int] | None
    node_rank: Fact[int | None] | None
    nproc_per_node: Workers | None
    default_workers: Workers
    """Workers if neither an option nor the cluster sets them."""
    hosts: Fact[tuple[str, ...]]
    """As ``--hosts`` or ``--hostfile`` lists them; () if they do not."""
    has_address: bool
    """The address of node 0 is set, by an option or an export."""
    has_endpoint: bool
    """Nodes meet at an endpoint, where the coordinator gives them their ranks."""

    @property
    def place_the_node(self) -> bool:
        return self.nnodes is not None and (self.nnodes.value == 1 or self.node_rank is not None)

    @property
    def are_complete(self) -> bool:
        """Whether nothing is left to a cluster: two sources could give two nodes one rank."""
        is_alone = self.nnodes is not None and self.nnodes.value == 1
        return is_alone or (self.node_rank is not None and self.has_address)

    def narrowed_to(self, place: Place | None) -> "ShapeOptions":
        """Return the same, with ``MIN:MAX`` nodes replaced by the cluster's number within it."""
        most, fewest = self.nnodes, self.fewest_nodes
        if most is None or fewest is None or place is None or place.unclear.value:
            return self
        if not fewest.value <= place.nnodes.value <= most.value:
            return self
        return replace(self, nnodes=Fact(place.nnodes.value, most.origin))


def read_shape_options(sources: Sequence[Layer], inputs: Inputs) -> ShapeOptions:
    """Return what ``sources`` set."""
    endpoint = find("rdzv_endpoint", sources)
    with_exports = (*sources, from_exports(inputs.variables))
    nnodes = all_nodes(sources)
    has_spares = value_of("spares", sources).value > 0
    options = ShapeOptions(
        nnodes=nnodes,
        fewest_nodes=nnodes if has_spares else fewest_nodes(sources),
        node_rank=find("node_rank", sources),
        nproc_per_node=find("nproc_per_node", sources) or _workers_by_devices(sources),
        default_workers=default_workers(inputs.process.called),
        hosts=Fact((), "default"),
        has_address=bool(endpoint or find("master_addr", with_exports)),
        has_endpoint=bool(endpoint),
    )
    if not find("hosts", sources) and not find("hostfile", sources):
        return options
    return _with_listed_hosts(options, sources, inputs)


def _workers_by_devices(sources: Sequence[Layer]) -> Workers | None:
    devices, gpus_per_worker = find("devices", sources), find("gpus_per_worker", sources)
    if not devices:
        return None
    each = (gpus_per_worker and gpus_per_worker.value) or 1
    return Fact(max(1, len(devices.value) // each), devices.origin)


def _with_listed_hosts(
    options: ShapeOptions, sources: Sequence[Layer], inputs: Inputs
) -> ShapeOptions:
    from clusterrun.sources.hosts.listed_hosts import list_hosts, own_rank

    listed = list_hosts(sources)
    hosts, nnodes, fewest = listed.hosts, options.nnodes, options.fewest_nodes
    if nnodes and fewest and not fewest.value <= len(hosts.value) <= nnodes.value:
        raise UsageError(
            f"nnodes is {nnodes}, but {hosts.origin} lists {len(hosts.value)}",
            f"leave {nnodes.origin} out",
        )
    own_address = find("local_addr", sources)
    own_name = (own_address and own_address.value) or inputs.process.host
    # The command that reaches all hosts by ssh may run on none of them: it plans for the first.
    first = Fact(0, over_ssh.origin) if (over_ssh := is_over_ssh(sources)).value else None
    rank = options.node_rank or first or own_rank(hosts, own_name, inputs.process.addresses)
    is_listed = (rank.value or 0) < len(hosts.value)
    slots = listed.slots.get(hosts.value[rank.value or 0]) if is_listed else None
    return replace(
        options,
        nnodes=Fact(len(hosts.value), hosts.origin),
        node_rank=rank,
        nproc_per_node=options.nproc_per_node or slots,
        hosts=hosts,
        has_address=True,
    )
