"""The shape of the world: nodes, this one's rank, its workers; and where the nodes meet.

Either the options or the cluster set all of the shape. Options may repeat what the cluster sets; if
they contradict it, they must be complete, and nothing is taken from the cluster.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_run_id
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import NO_CLUSTER, detect
from clusterrun.job.clusters.found import Found, Launch, Variables, first_host
from clusterrun.job.declarations import Setting, format_value
from clusterrun.job.job import TaskLayout
from clusterrun.job.options import NodeLauncher
from clusterrun.job.sources import CommandLine, Layer, find, from_exports, layer_of, value_of
from clusterrun.job.torchrun import ONE_WORKER, TORCHRUN
from clusterrun.job.values import Endpoint, NodeRange, is_link_local

if TYPE_CHECKING:
    from clusterrun.job.hosts import ListedHosts

DEFAULT_PORT = 29500
"""The port at which several nodes meet if none is set: torchrun's."""


class NodeLayout(Struct, frozen=True):
    """The shape of the world, as far as one node can know it before it joins."""

    layers: tuple[Layer, ...]
    """What options set and, weaker, what was taken from the cluster."""
    nodes: Setting[int]
    """Spares included."""
    found: Found
    """What was taken from the cluster, also what no option says."""
    listed: "ListedHosts | None" = None
    """The hosts of ``--hosts`` or ``--hostfile``; None if neither is set."""

    @property
    def agents(self) -> int:
        """The number of agents in the job, spares included."""
        return self.found.tasks.value.size if self.found.tasks else self.nodes.value


def resolve_node_layout(
    layers: tuple[Layer, ...], variables: Variables, launch: Launch, *, is_nested: bool
) -> NodeLayout:
    """Return the shape that the options or the detected cluster set.

    A nested launch, inside a worker, has no place of its own in the cluster: none is detected,
    unless ``--cluster`` names it.

    Raises:
        UsageError: options and the cluster contradict each other, or one of them itself.

    """
    nodes, fewest = asked_nodes(layers)
    layers = (*layers, _workers_by_devices(layers))
    listed = _listed_hosts(layers)
    if listed:
        layers, nodes = _with_listed_hosts(listed, layers, nodes, fewest, launch)
    asked = _asked_cluster(layers, is_nested=is_nested)
    found = detect(asked, variables, replace(launch, nnodes=nodes))
    if launch.is_drawn and found.obstacle is not None:
        found = Found(cluster=found.cluster, yields=True, warnings=(found.obstacle.message,))
    _expect_one_starter(value_of("launcher", layers), found)
    nodes = _narrowed(nodes, fewest, found)
    default = ONE_WORKER if launch.process.called == TORCHRUN else {}
    taken = _choose((*layers, default), nodes, found, variables)
    if listed:
        # A list of hosts is made for this job, an export for any launcher.
        taken = replace(
            taken,
            master_addr=first_host(listed.hosts),
            ignored_exports=(*taken.ignored_exports, "MASTER_ADDR"),
        )
    nodes = nodes or taken.nnodes or Setting(1, "default")
    if asked.value == NO_CLUSTER and nodes.value == 1 and not is_nested:
        taken = replace(taken, warnings=tuple(_ignored(asked, layers, variables, launch)))
    layers = (*_worker_of_a_task(layers, taken), *layers, _layer(taken), default)
    shape = NodeLayout(layers, nodes, taken, listed)
    _check_rank(value_of("node_rank", shape.layers), nodes)
    return shape


def asked_nodes(layers: Sequence[Layer]) -> tuple[Setting[int] | None, Setting[int] | None]:
    """Return how many nodes the options ask for, spares included, and how many are enough."""
    nnodes, spares = find("nnodes", layers), value_of("spares", layers)
    if nnodes is None:
        return None, None
    if spares.value == 0:
        return Setting(nnodes.value.most, nnodes.origin), Setting(
            nnodes.value.fewest, nnodes.origin
        )
    if nnodes.value.fewest != nnodes.value.most:
        raise UsageError(
            f"nnodes is {nnodes}, and spares is {spares}: with spares, the number of"
            " nodes that work never changes",
            f"give --nnodes one number, or leave {spares.origin} out",
        )
    nodes = Setting(nnodes.value.most + spares.value, f"{nnodes.origin} and {spares.origin}")
    return nodes, nodes


def _workers_by_devices(layers: Sequence[Layer]) -> Layer:
    devices, gpus_per_worker = find("devices", layers), find("gpus_per_worker", layers)
    if not devices:
        return {}
    each = (gpus_per_worker and gpus_per_worker.value) or 1
    return layer_of(nproc_per_node=Setting(max(1, len(devices.value) // each), devices.origin))


def _listed_hosts(layers: Sequence[Layer]) -> "ListedHosts | None":
    if not any({"hosts", "hostfile"} & layer.keys() for layer in layers):
        return None
    # Few jobs list their hosts.
    from clusterrun.job.hosts import list_hosts

    return list_hosts(layers)


def _with_listed_hosts(
    listed: "ListedHosts",
    layers: tuple[Layer, ...],
    nodes: Setting[int] | None,
    fewest: Setting[int] | None,
    launch: Launch,
) -> tuple[tuple[Layer, ...], Setting[int]]:
    """Return what the options and the list of hosts set, and the number of the hosts."""
    hosts = listed.hosts
    if nodes and fewest and not fewest.value <= len(hosts.value) <= nodes.value:
        raise UsageError(
            f"nnodes is {nodes}, but {hosts.origin} lists {len(hosts.value)}",
            f"leave {nodes.origin} out",
        )
    rank = find("node_rank", layers) or _own_rank(hosts, layers, launch)
    is_listed = rank.value < len(hosts.value)
    slots = listed.slots.get(hosts.value[rank.value]) if is_listed else None
    weaker = layer_of(node_rank=rank, nproc_per_node=slots)
    count = Setting(len(hosts.value), hosts.origin)
    return (layer_of(hosts=hosts), *layers, weaker), count


def _own_rank(
    hosts: Setting[tuple[str, ...]], layers: Sequence[Layer], launch: Launch
) -> Setting[int]:
    # The command that reaches all hosts by ssh may run on none of them: it plans for the first.
    launcher = value_of("launcher", layers)
    if launcher.value is NodeLauncher.SSH:
        return Setting(0, launcher.origin)
    from clusterrun.job.hosts import own_rank

    own_name = value_of("local_addr", layers).value or launch.process.host
    return own_rank(hosts, own_name, launch.process.addresses)


def _asked_cluster(layers: Sequence[Layer], *, is_nested: bool) -> Setting[str]:
    asked, paddlecloud = value_of("cluster", layers), find("use_paddlecloud", layers)
    if asked.value:
        return asked
    if paddlecloud and paddlecloud.value:
        return Setting("paddle", paddlecloud.origin)
    return Setting(NO_CLUSTER, "inside a worker") if is_nested else asked


def _ignored(
    asked: Setting[str], layers: Sequence[Layer], variables: Variables, launch: Launch
) -> Iterator[str]:
    """Yield what a user may not expect of a job on one node that ignores its cluster."""
    try:
        found = detect(Setting("", "default"), variables, launch)
    except UsageError:
        return
    count = found.tasks or found.nnodes
    rank = found.tasks.value.rank if found.tasks else found.node_rank and found.node_rank.value
    if count and not found.yields and found.agents > 1 and rank in {0, None}:
        yield (
            f"{found.agents} whole jobs run, one in each task of {found.cluster.value}"
            f" ({count.origin}): for one job, leave {asked.origin} out"
        )
    # Of a shell elsewhere, an error has said to type --cluster none.
    elif found.elsewhere and value_of("standalone", layers).value:
        yield found.elsewhere


def _expect_one_starter(launcher: Setting[NodeLauncher], found: Found) -> None:
    """Refuse agents which a cluster has started and which would start more of them by ssh."""
    # A cluster that does not start all processes itself has no secret: there, one may use ssh.
    is_over_ssh = launcher.value is NodeLauncher.SSH
    if is_over_ssh and found.secret is not None and found.agents > 1:
        raise UsageError(
            f"{launcher.origin} is ssh, but {found.cluster.value} has started {found.agents} agents"
            f" of this job ({found.cluster.origin})",
            "type --launcher none",
        )


def _narrowed(
    nodes: Setting[int] | None, fewest: Setting[int] | None, found: Found
) -> Setting[int] | None:
    """Return ``nodes`` or, if the cluster's number is within MIN:MAX, that."""
    if nodes is None or fewest is None or found.nnodes is None or found.unclear:
        return nodes
    is_within = fewest.value <= found.nnodes.value <= nodes.value
    return Setting(found.nnodes.value, nodes.origin) if is_within else nodes


def _choose(
    layers: Sequence[Layer],
    nodes: Setting[int] | None,
    found: Found,
    variables: Variables,
) -> Found:
    """Return what is taken of ``found``; ``nodes`` is the number by options."""
    rank, has_endpoint = find("node_rank", layers), bool(find("rdzv_endpoint", layers))
    is_alone = nodes is not None and nodes.value == 1
    # Even if options set the shape: other NUMA nodes belong to other jobs.
    nothing = Found(cluster=found.cluster, numa_node=found.numa_node)
    if is_alone and found.elsewhere:
        nothing = replace(nothing, warnings=(found.elsewhere,))
    # At an endpoint, nodes get their ranks from the coordinator, whatever RANK is.
    are_met = has_endpoint and found.obstacle is None
    if found.yields and nodes is not None and (is_alone or rank is not None or are_met):
        return nothing
    if found.obstacle is not None:
        raise found.obstacle
    differences = tuple(_differences(nodes, rank, found))
    if not differences:
        return found
    is_listed = find("hosts", layers) or find("master_addr", layers)
    has_address = has_endpoint or is_listed or variables.get("MASTER_ADDR")
    # Two sources could give two nodes one rank.
    are_complete = is_alone or (rank is not None and has_address)
    if not (found.yields or are_complete):
        origins = [fact.origin for fact in (nodes, rank) if fact]
        raise UsageError(
            "; ".join(f"{value}, but the cluster has {other}" for value, other in differences),
            f"leave {' and '.join(origins)} out, or set all of --nnodes, --node-rank and"
            " --master-addr",
        )
    workers = value_of("nproc_per_node", layers)
    if found.tasks and workers.value != 1:
        raise _too_many_starters(workers, found.tasks)
    has_several = (nodes or found.nnodes or Setting(1, "")).value > 1
    warnings = tuple(f"{value}; the cluster's {other} is ignored" for value, other in differences)
    return replace(
        nothing,
        nnodes=found.nnodes,
        run_id=found.run_id if has_several else None,
        warnings=() if found.yields else warnings,
    )


def _differences(
    nodes: Setting[int] | None, rank: Setting[int] | None, found: Found
) -> Iterator[tuple[str, str]]:
    of_cluster = found.nnodes or Setting(1, "default")
    if nodes and nodes.value != of_cluster.value:
        yield f"nnodes is {nodes}", str(of_cluster)
    its_rank = found.node_rank
    if rank and rank.value != (its_rank and its_rank.value):
        yield f"node_rank is {rank}", str(its_rank or "none")


def _worker_of_a_task(layers: Sequence[Layer], taken: Found) -> Sequence[Layer]:
    """Return the one worker of a task as a layer; () if this is not a task for a worker."""
    workers = find("nproc_per_node", layers)
    if taken.tasks is None:
        return ()
    size = taken.tasks.value.local_size
    if workers and isinstance(workers.value, int) and workers.value not in {1, size}:
        raise _too_many_starters(workers, taken.tasks)
    return (layer_of(nproc_per_node=Setting(1, taken.tasks.origin)),)


def _too_many_starters(workers: Setting[object], tasks: Setting[TaskLayout]) -> UsageError:
    has_tasks = f"{tasks.value.local_size} tasks ({tasks.origin})"
    return UsageError(
        f"nproc_per_node is {format_value(workers.value)} ({workers.origin}), but this node has"
        f" {has_tasks}, and each would start that many workers",
        f"start one task on each node:\n  {tasks.value.one_per_node}\n"
        "or one worker in each task: leave out the options for nodes, ranks and workers",
    )


def _layer(taken: Found) -> Layer:
    # A cluster's name for the job may have characters that no folder's name can have.
    run_id = taken.run_id and Setting(as_run_id(taken.run_id.value), taken.run_id.origin)
    return layer_of(
        node_rank=taken.node_rank,
        hosts=taken.hosts,
        nproc_per_node=taken.nproc_per_node,
        run_id=run_id,
    )


def _check_rank(rank: Setting[int | None], nodes: Setting[int]) -> None:
    if rank.value is not None and rank.value >= nodes.value:
        one = f"give --nnodes {rank.value + 1} or more, or leave the rank out: one node has rank 0"
        raise UsageError(
            f"node_rank is {rank}, but nnodes is {nodes}",
            one if nodes.value == 1 else f"give a rank from 0 to {nodes.value - 1}",
        )


# Nodes that work


def working_nodes(shape: NodeLayout) -> Layer:
    """Return how many of the nodes work, and how many of them are enough; the others are spares.

    Raises:
        UsageError: no node is left to work.

    """
    nodes, nnodes = shape.nodes, find("nnodes", shape.layers)
    spares, tasks = value_of("spares", shape.layers), shape.found.tasks
    if spares.value and tasks:
        raise UsageError(
            f"spares is {spares}, but each worker is a task of its own ({tasks.origin})",
            f"start one task on each node:\n  {tasks.value.one_per_node}",
        )
    if spares.value and spares.value >= nodes.value:
        raise UsageError(
            f"spares is {spares}, but the job has {nodes} node{'s' if nodes.value > 1 else ''}",
            "give the number of nodes that work with --nnodes; spares come in addition",
        )
    most = nodes.value - spares.value
    origin = nnodes.origin if spares.value and nnodes else nodes.origin
    fewest = nnodes.value.fewest if nnodes else most
    return layer_of(nnodes=Setting(NodeRange(min(fewest, most), most), origin))


# Where the nodes meet


def resolve_rendezvous(
    shape: NodeLayout, variables: Mapping[str, str], launch: Launch
) -> tuple[Layer, Setting[tuple[int, ...]]]:
    """Return the address and the port where nodes meet, or ports to try in this order.

    With a single agent, none needs to be set.

    Raises:
        UsageError: several nodes have no place to meet.

    """
    layers, found = shape.layers, shape.found
    no_ports: Setting[tuple[int, ...]] = Setting((), "default")
    endpoint = value_of("rdzv_endpoint", layers)
    if shape.agents == 1:
        address = find("master_addr", layers) or find("local_addr", layers)
        return layer_of(master_addr=address), no_ports
    if endpoint.value is not None:
        _check_ports(endpoint, value_of("master_port", layers))
        _check_address(Setting(Endpoint.parse(endpoint.value).host, endpoint.origin))
        return {}, no_ports
    # Exports count only here: scripts for workers often export the very port of --rdzv-endpoint.
    exports = from_exports(variables, found.ignored_exports)
    layers = (*layers, exports, layer_of(master_addr=found.master_addr))
    address, port = find("master_addr", layers), find("master_port", layers)
    if address is None and launch.is_drawn:
        return {}, no_ports
    if address is None:
        raise _no_address(shape, launch.line)
    _check_address(address)
    if port is None and found.ports:
        return layer_of(master_addr=address), found.ports
    if port is not None and port.value is None:
        raise _unknown_port(port.origin)
    usual = Setting(DEFAULT_PORT, "default")
    return layer_of(master_addr=address, master_port=port or usual), no_ports


def _check_ports(endpoint: Setting[str], port: Setting[int | None]) -> None:
    taken = Endpoint.parse(endpoint.value).port
    if taken == 0:
        raise _unknown_port(endpoint.origin)
    if taken is not None and port.value == taken:
        raise UsageError(
            f"{endpoint.origin} and {port.origin} both use port {taken}",
            f"leave {port.origin} out: a free port is chosen for the workers",
        )


def _check_address(address: Setting[str]) -> None:
    """Check that the address of node 0 is the same on all nodes."""
    if is_link_local(address.value):
        raise UsageError(
            f"node 0 is at {address}, a link-local address, which each node reaches by an interface of"
            " its own",
            "give its host name, or an address that it shows there:\n  ip address show scope global",
        )


def _unknown_port(origin: str) -> UsageError:
    return UsageError(
        f"{origin}: port 0 is chosen by each node, but all nodes must meet at one port",
        "give a number from 1 to 65535",
    )


def _no_address(shape: NodeLayout, line: CommandLine) -> UsageError:
    no_address = shape.found.no_address
    # Without ranks, the node that has the address becomes node 0.
    how = (
        "give its host name"
        if find("node_rank", shape.layers)
        else "run the same command on each node, with the name of one node as HOST"
    )
    return UsageError(
        f"nnodes is {shape.nodes}, but the address of node 0 is not set"
        f"{f': {no_address}' if no_address else ''}",
        f"{how}:\n  {line.line('--master-addr', 'HOST')}",
    )
