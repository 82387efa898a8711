"""The nodes of the job, this node's rank and number of workers, and the rendezvous.

Either the options or the cluster set all of these. Options may repeat what the cluster sets. If they
differ from it, they must be complete, and nothing is taken from the cluster.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_run_id
from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import NO_CLUSTER, detect
from clusterrun.job.clusters.found import DetectionContext, Found, Variables, first_host
from clusterrun.job.declarations import Setting, format_value
from clusterrun.job.job import TaskLayout
from clusterrun.job.options import NodeLauncher
from clusterrun.job.sources import (
    CommandLine,
    Layer,
    find,
    from_exports,
    layer_of,
    strength,
    value_of,
)
from clusterrun.job.torchrun import ONE_WORKER, TORCHRUN
from clusterrun.job.values import Endpoint, NodeRange, is_link_local

if TYPE_CHECKING:
    from clusterrun.job.hosts import ListedHosts

DEFAULT_PORT = 29500
"""torchrun's port for rendezvous."""


class NodeLayout(Struct, frozen=True):
    """The nodes of the job as one node knows them before it joins."""

    layers: tuple[Layer, ...]
    """What options set; the last layers have what is taken from the cluster, and defaults."""
    nodes: Setting[int]
    """The number of nodes, including spares."""
    found: Found
    """What is taken from the cluster."""
    listed: "ListedHosts | None" = None
    """The hosts of ``--hosts`` or ``--hostfile``; None if neither is set."""

    @property
    def agents(self) -> int:
        """The number of agents in the job, including spares."""
        return self.found.tasks.value.size if self.found.tasks else self.nodes.value


def resolve_node_layout(
    layers: tuple[Layer, ...], variables: Variables, context: DetectionContext, *, is_nested: bool
) -> NodeLayout:
    """Return the nodes that the options or the detected cluster set.

    A nested launch, inside a worker, is not a part of the cluster's job: no cluster is detected unless
    ``--cluster`` names one.

    Raises:
        UsageError: the options and the cluster disagree, or two options or two variables do.

    """
    requested = requested_nodes(layers)
    nodes = Setting(requested.value.maximum, requested.origin) if requested else None
    layers = (*layers, _workers_by_devices(layers))
    listed = _listed_hosts(layers)
    if listed:
        layers, nodes = _with_listed_hosts(listed, layers, requested, context)
    asked = _asked_cluster(layers, is_nested=is_nested)
    found = detect(asked, variables, replace(context, nnodes=nodes))
    if context.local_only and found.error is not None:
        found = Found(cluster=found.cluster, overridable=True, warnings=(found.error.message,))
    _check_one_launcher(value_of("launcher", layers), found)
    if (
        requested
        and nodes
        and found.nnodes
        and not found.unclear
        and requested.value.minimum <= found.nnodes.value <= nodes.value
    ):
        # Within MIN:MAX, the cluster decides how many nodes there are.
        nodes = Setting(found.nnodes.value, nodes.origin)
    default = ONE_WORKER if context.process.called == TORCHRUN else {}
    used = _used_part(found, (*layers, default), nodes, variables)
    if listed:
        # A list of hosts is made for this job; exported variables may be left over.
        used = replace(
            used,
            master_addr=first_host(find("hosts", layers)),
            ignored_exports=(*used.ignored_exports, "MASTER_ADDR"),
        )
    nodes = nodes or used.nnodes or Setting(1, "default")
    if asked.value == NO_CLUSTER and nodes.value == 1 and not is_nested:
        warnings = tuple(_ignored_cluster_warnings(asked, layers, variables, context))
        used = replace(used, warnings=warnings)
    layers = (_task_layer(layers, used), *layers, _cluster_layer(used), default)
    _check_rank(value_of("node_rank", layers), nodes)
    return NodeLayout(layers, nodes, used, listed)


def requested_nodes(layers: Sequence[Layer]) -> Setting[NodeRange] | None:
    """Return the number of nodes from the options, including spares; None if no option sets it.

    Raises:
        UsageError: there are spares, but the number without them is a range.

    """
    nnodes, spares = find("nnodes", layers), value_of("spares", layers)
    if nnodes is None or spares.value == 0:
        return nnodes
    if nnodes.value.minimum != nnodes.value.maximum:
        raise UsageError(
            f"nnodes is {nnodes}, but spares is {spares}: with spares, the number of working nodes"
            " is fixed",
            f"give --nnodes one number, or remove {spares.origin}",
        )
    nodes = nnodes.value.maximum + spares.value
    return Setting(NodeRange(nodes, nodes), f"{nnodes.origin} and {spares.origin}")


def _workers_by_devices(layers: Sequence[Layer]) -> Layer:
    devices, gpus_per_worker = find("devices", layers), find("gpus_per_worker", layers)
    if not devices:
        return {}
    each = (gpus_per_worker and gpus_per_worker.value) or 1
    return layer_of(nproc_per_node=Setting(max(1, len(devices.value) // each), devices.origin))


def _listed_hosts(layers: Sequence[Layer]) -> "ListedHosts | None":
    if not any({"hosts", "hostfile"} & layer.keys() for layer in layers):
        return None
    from clusterrun.job.hosts import list_hosts

    return list_hosts(layers)


def _with_listed_hosts(
    listed: "ListedHosts",
    layers: tuple[Layer, ...],
    requested: Setting[NodeRange] | None,
    context: DetectionContext,
) -> tuple[tuple[Layer, ...], Setting[int]]:
    """Return what the options and the list of hosts set, and the number of hosts."""
    # ssh's USER@HOST; only the host is an address.
    names = tuple(host.rpartition("@")[2] for host in listed.hosts.value)
    hosts = Setting(names, listed.hosts.origin)
    count = Setting(len(hosts.value), hosts.origin)
    if requested and not requested.value.minimum <= count.value <= requested.value.maximum:
        raise UsageError(
            f"nnodes is {requested.value.maximum} ({requested.origin}), but {hosts.origin} lists"
            f" {count.value}",
            f"remove {requested.origin}",
        )
    rank = find("node_rank", layers) or _own_rank(hosts, layers, context)
    is_listed = rank.value < count.value
    slots = listed.slots.get(listed.hosts.value[rank.value]) if is_listed else None
    is_elsewhere = _is_not_first(layers, hosts)
    weaker = layer_of(node_rank=None if is_elsewhere else rank, nproc_per_node=slots)
    return (layer_of(hosts=hosts), *layers, weaker), count


def _own_rank(
    hosts: Setting[tuple[str, ...]], layers: Sequence[Layer], context: DetectionContext
) -> Setting[int]:
    # The host that starts agents by ssh may not be in the list; it makes the plan of the first host.
    launcher = value_of("launcher", layers)
    if launcher.value is NodeLauncher.SSH:
        return Setting(0, launcher.origin)
    from clusterrun.job.hosts import own_rank

    own_name = value_of("local_addr", layers).value or context.process.host
    return own_rank(hosts, own_name, context.process.addresses)


def _asked_cluster(layers: Sequence[Layer], *, is_nested: bool) -> Setting[str]:
    asked, paddlecloud = value_of("cluster", layers), find("use_paddlecloud", layers)
    at, paddle_at = (strength(name, layers) for name in ("cluster", "use_paddlecloud"))
    if paddlecloud and paddlecloud.value and (not asked.value or paddle_at <= at):
        if paddle_at == at and asked.value not in {"", "paddle"}:
            raise UsageError(
                f"{paddlecloud.origin} means --cluster paddle, but cluster is {asked}",
                "remove one of the two",
            )
        return Setting("paddle", paddlecloud.origin)
    if is_nested and asked.value in {"", NO_CLUSTER}:
        return Setting(NO_CLUSTER, "inside a worker")
    return asked


def _ignored_cluster_warnings(
    asked: Setting[str], layers: Sequence[Layer], variables: Variables, context: DetectionContext
) -> Iterator[str]:
    """Yield a warning if a one-node job ignores a cluster that was probably meant.

    Raises:
        UsageError: several such jobs would requeue one job of the scheduler.

    """
    try:
        found = detect(Setting("", "default"), variables, context)
    except UsageError:
        return
    count = found.tasks or found.nnodes
    rank = found.tasks.value.rank if found.tasks else found.node_rank and found.node_rank.value
    if count and not found.overridable and found.agents > 1:
        trouble = (
            f"{found.agents} whole jobs run, one in each task of {found.cluster.value}"
            f" ({count.origin})"
        )
        requeue = value_of("requeue", layers)
        # With --cluster none, there is no scheduler.
        if requeue.value and value_of("standalone", layers).value:
            raise UsageError(
                f"{trouble}, and with {requeue.origin} they would have the same run id, and each"
                " would requeue all",
                f"remove {requeue.origin}; or, for one job, {asked.origin}",
            )
        if rank in {0, None}:
            yield f"{trouble}: for one job, remove {asked.origin}"
    # With --cluster none there is no warning, because the error without it says to type it.
    elif found.elsewhere_warning and value_of("standalone", layers).value:
        yield found.elsewhere_warning


def _check_one_launcher(launcher: Setting[NodeLauncher], found: Found) -> None:
    """Check that agents of a cluster do not start more agents by ssh."""
    # If the cluster does not start all agents, there is no secret, and ssh may start the others.
    is_over_ssh = launcher.value is NodeLauncher.SSH
    if is_over_ssh and found.secret is not None and found.agents > 1:
        raise UsageError(
            f"{launcher.origin} is ssh, but {found.cluster.value} has started {found.agents} agents"
            f" of this job ({found.cluster.origin})",
            "use --launcher none",
        )


def _used_part(
    found: Found, layers: Sequence[Layer], nodes: Setting[int] | None, variables: Variables
) -> Found:
    """Return what the job takes from the cluster; ``nodes`` is the number that options set.

    Raises:
        UsageError: the options differ from the cluster and are incomplete, or the cluster's error
            applies.

    """
    rank, has_endpoint = find("node_rank", layers), bool(find("rdzv_endpoint", layers))
    is_alone = nodes is not None and nodes.value == 1
    # The NUMA node is always taken, because the others belong to other jobs.
    nothing = Found(cluster=found.cluster, numa_node=found.numa_node)
    if is_alone and found.elsewhere_warning:
        nothing = replace(nothing, warnings=(found.elsewhere_warning,))
    # With an endpoint, the coordinator assigns the ranks.
    has_rank = is_alone or rank is not None or (has_endpoint and found.error is None)
    if found.overridable and nodes is not None and has_rank:
        return nothing
    if found.error is not None:
        raise found.error
    differences = tuple(_differences(nodes, rank, found))
    if not differences:
        is_elsewhere = has_endpoint and (
            found.no_address_reason is not None or _is_not_first(layers, found.hosts)
        )
        if found.tasks or rank is not None or not is_elsewhere:
            return found
        # Node 0 is the node at the endpoint; the others are ranked as they join.
        return replace(found, node_rank=None, hosts=None)
    is_listed = find("hosts", layers) or find("master_addr", layers)
    has_address = has_endpoint or is_listed or variables.get("MASTER_ADDR")
    # With ranks from two sources, two nodes could have the same rank.
    are_complete = is_alone or (rank is not None and has_address)
    if not (found.overridable or are_complete):
        origins = [setting.origin for setting in (nodes, rank) if setting]
        raise UsageError(
            "; ".join(f"{value}, but the cluster has {other}" for value, other in differences),
            f"remove {' and '.join(origins)}, or set all of --nnodes, --node-rank and --master-addr",
        )
    workers = value_of("nproc_per_node", layers)
    if found.tasks and workers.value != 1:
        raise _too_many_workers(workers, found.tasks)
    has_several = (nodes or found.nnodes or Setting(1, "")).value > 1
    warnings = tuple(f"{value}; the cluster's {other} is ignored" for value, other in differences)
    return replace(
        nothing,
        nnodes=found.nnodes,
        run_id=found.run_id if has_several else None,
        warnings=() if found.overridable else warnings,
    )


def _is_not_first(layers: Sequence[Layer], hosts: Setting[tuple[str, ...]] | None) -> bool:
    """Return whether the endpoint is one of ``hosts``, but not the first, which would be node 0."""
    endpoint = value_of("rdzv_endpoint", layers).value
    if endpoint is None or hosts is None:
        return False
    from clusterrun.job.hosts import by_name

    found = by_name(hosts.value, Endpoint.parse(endpoint).host)
    return found != [] and 0 not in found


def _differences(
    nodes: Setting[int] | None, rank: Setting[int] | None, found: Found
) -> Iterator[tuple[str, str]]:
    """Yield each value of the options that differs from the cluster's, and the latter."""
    found_nodes, found_rank = found.nnodes or Setting(1, "default"), found.node_rank
    if nodes and nodes.value != found_nodes.value:
        yield f"nnodes is {nodes}", str(found_nodes)
    if rank and rank.value != (found_rank and found_rank.value):
        yield f"node_rank is {rank}", str(found_rank or "none")


def _task_layer(layers: Sequence[Layer], used: Found) -> Layer:
    """Return a layer with the only worker of a task, if there is one task per worker."""
    workers = find("nproc_per_node", layers)
    if used.tasks is None:
        return {}
    size = used.tasks.value.local_size
    if workers and isinstance(workers.value, int) and workers.value not in {1, size}:
        raise _too_many_workers(workers, used.tasks)
    return layer_of(nproc_per_node=Setting(1, used.tasks.origin))


def _too_many_workers(workers: Setting[object], tasks: Setting[TaskLayout]) -> UsageError:
    has_tasks = f"{tasks.value.local_size} tasks ({tasks.origin})"
    return UsageError(
        f"nproc_per_node is {format_value(workers.value)} ({workers.origin}), but this node has"
        f" {has_tasks}, and each would start that many workers",
        "start one task on each node:\n"
        f"  {tasks.value.one_per_node}\n"
        "or one worker in each task: remove the options for nodes, ranks and workers",
    )


def _cluster_layer(used: Found) -> Layer:
    # The run id also names a folder, which may not have all characters of the cluster's id.
    run_id = used.run_id and Setting(as_run_id(used.run_id.value), used.run_id.origin)
    return layer_of(
        node_rank=used.node_rank,
        hosts=used.hosts,
        nproc_per_node=used.nproc_per_node,
        run_id=run_id,
    )


def _check_rank(rank: Setting[int | None], nodes: Setting[int]) -> None:
    if rank.value is not None and rank.value >= nodes.value:
        one = f"give --nnodes {rank.value + 1} or more, or remove the rank: one node has rank 0"
        raise UsageError(
            f"node_rank is {rank}, but nnodes is {nodes}",
            one if nodes.value == 1 else f"give a rank from 0 to {nodes.value - 1}",
        )


def working_nodes(layout: NodeLayout) -> Layer:
    """Return the range of nodes without spares.

    Raises:
        UsageError: all nodes are spares, or each worker is a task.

    """
    nodes, nnodes = layout.nodes, find("nnodes", layout.layers)
    spares, tasks = value_of("spares", layout.layers), layout.found.tasks
    if spares.value and tasks:
        raise UsageError(
            f"spares is {spares}, but each worker is a task of its own ({tasks.origin})",
            f"start one task on each node:\n  {tasks.value.one_per_node}",
        )
    if spares.value and spares.value >= nodes.value:
        raise UsageError(
            f"spares is {spares}, but the job has {nodes} node{'s' if nodes.value > 1 else ''}",
            "set --nnodes to the number of working nodes; spares are added to it",
        )
    maximum = nodes.value - spares.value
    origin = nnodes.origin if spares.value and nnodes else nodes.origin
    minimum = min(nnodes.value.minimum, maximum) if nnodes else maximum
    return layer_of(nnodes=Setting(NodeRange(minimum, maximum), origin))


def resolve_rendezvous(
    layout: NodeLayout, variables: Mapping[str, str], context: DetectionContext
) -> tuple[Layer, Setting[tuple[int, ...]] | None]:
    """Return the address and port of the rendezvous; instead of the port, ports to try in order.

    A single agent needs neither.

    Raises:
        UsageError: there are several nodes, but no usable address or port.

    """
    layers, found = layout.layers, layout.found
    endpoint = value_of("rdzv_endpoint", layers)
    if layout.agents == 1:
        address = find("master_addr", layers) or find("local_addr", layers)
        return layer_of(master_addr=address), None
    if endpoint.value is not None:
        _check_ports(endpoint, value_of("master_port", layers))
        _check_address(Setting(Endpoint.parse(endpoint.value).host, endpoint.origin))
        return {}, None
    # With --rdzv-endpoint, exported variables are ignored: they often have the port of the endpoint.
    exports = from_exports(variables, found.ignored_exports)
    layers = (*layers, exports, layer_of(master_addr=found.master_addr))
    address, port = find("master_addr", layers), find("master_port", layers)
    if address is None and context.local_only:
        return {}, None
    if address is None:
        raise _no_address(layout, context.line)
    _check_address(address)
    if port is None and found.ports:
        return layer_of(master_addr=address), found.ports
    if port is not None and port.value is None:
        raise _unknown_port(port.origin)
    default = Setting(DEFAULT_PORT, "default")
    return layer_of(master_addr=address, master_port=port or default), None


def _check_ports(endpoint: Setting[str], port: Setting[int | None]) -> None:
    used = Endpoint.parse(endpoint.value).port
    if used == 0:
        raise _unknown_port(endpoint.origin)
    if used is not None and port.value == used:
        raise UsageError(
            f"{endpoint.origin} and {port.origin} both use port {used}",
            f"remove {port.origin}: a free port is chosen for the workers",
        )


def _check_address(address: Setting[str]) -> None:
    """Check that the address of node 0 means the same on all nodes."""
    if is_link_local(address.value):
        raise UsageError(
            f"node 0 is at {address}, a link-local address, which each node reaches through a"
            " different interface",
            "give its host name, or an address that it shows there:\n  ip address show scope global",
        )


def _unknown_port(origin: str) -> UsageError:
    return UsageError(
        f"{origin}: with port 0 each node chooses a port itself, but all nodes must use the same"
        " rendezvous port",
        "give a number from 1 to 65535",
    )


def _no_address(layout: NodeLayout, line: CommandLine) -> UsageError:
    reason = layout.found.no_address_reason
    # Without ranks, the node with the address becomes node 0.
    how = (
        "give its host name"
        if find("node_rank", layout.layers)
        else "run the same command on each node, with the name of one node as HOST"
    )
    return UsageError(
        f"nnodes is {layout.nodes}, but the address of node 0 is not set"
        f"{f': {reason}' if reason else ''}",
        f"{how}:\n  {line.quoted('--master-addr', 'HOST')}",
    )
