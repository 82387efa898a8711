"""Reading the machine: all that a plan needs to know of this node."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Gpu, Machine, PciGpu
from clusterrun.machine.cgroup import cpu_quota
from clusterrun.machine.cpus import read_nodes, read_processors
from clusterrun.machine.gpus import inventory
from clusterrun.machine.gpus.devices import Device, Listing
from clusterrun.machine.gpus.locality import Locator
from clusterrun.machine.gpus.visible import Visible, select_visible
from clusterrun.machine.tree import Tree

_ORDER_UNKNOWN = "unknown: CUDA may number GPUs of several models in another order"
_ORDER_REMARK = (
    "GPUs of several models on several NUMA nodes: CUDA numbers the fastest first, so the node of a"
    " worker's GPU is unknown; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"
)


def inspect(tree: Tree, environ: Mapping[str, str], allowed: CpuSet | None, host: str) -> Machine:
    """Return the machine of the tree; what it does not show stays unknown, and is never guessed.

    Args:
        tree: this machine's, or that of a captured one.
        environ: the job's environment, for CUDA_VISIBLE_DEVICES.
        allowed: the CPUs that this process may use; None: as the captured tree has it, else all
            that are online.
        host: this node's name.

    """
    processors = read_processors(tree, allowed)
    nodes = read_nodes(tree, processors.online)
    listings = inventory.list_gpus(tree)
    locator = Locator(tree, nodes, processors)
    ours = tuple(_placed(one, locator) for listing in listings for one in listing.devices)
    known = {gpu.bdf: gpu.numa_node for gpu in ours}
    visible = select_visible(listings, environ)
    shown, remark = _shown(visible, listings, locator)
    return Machine(
        host=host,
        allowed=processors.allowed,
        nodes=nodes,
        packages=processors.packages,
        cores=processors.cores,
        cores_known=processors.cores_known,
        caches=processors.caches,
        gpus=ours,
        pci_gpus=tuple(
            PciGpu(bdf, known[bdf] if bdf in known else locator.locate_address(bdf).node)
            for bdf in inventory.list_addresses(tree, listings)
        ),
        visible=shown,
        visible_origin=visible.origin,
        visible_remark=remark,
        cpu_quota=cpu_quota(tree),
        isolated=processors.isolated,
    )


def _placed(device: Device, locator: Locator) -> Gpu:
    node, source = locator.locate(device)
    return Gpu(
        device.number,
        device.bdf,
        device.uuid,
        node,
        source,
        device.vendor,
        device.model,
        device.parent,
    )


def _shown(
    visible: Visible, listings: Sequence[Listing], locator: Locator
) -> tuple[tuple[Gpu, ...], str]:
    """Return the visible GPUs and a remark; their nodes are unknown if CUDA may number them otherwise."""
    shown = tuple(_placed(device, locator) for device in visible.devices)
    candidates = {
        locator.locate(device).node
        for listing in listings
        for device in listing.devices
        if device.vendor in {gpu.vendor for gpu in shown}
    }
    if visible.order_known or len(candidates) <= 1:
        return shown, visible.remark
    unplaced = (structs.replace(gpu, numa_node=None, node_source=_ORDER_UNKNOWN) for gpu in shown)
    return tuple(unplaced), "; ".join(filter(None, (visible.remark, _ORDER_REMARK)))
