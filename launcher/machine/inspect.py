"""Everything that a plan needs to know of this node, read once."""

from collections.abc import Mapping
from pathlib import Path

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import Gpu, Machine, Site
from launcher.machine.cgroup import cpu_quota
from launcher.machine.files import Files
from launcher.machine.gpus import Listing, list_gpus
from launcher.machine.locality import Locator
from launcher.machine.nodes import read_nodes
from launcher.machine.processors import read_processors
from launcher.machine.tree import Tree
from launcher.machine.visible import select_visible


def inspect(
    root: Path | Files, environ: Mapping[str, str], allowed: CpuSet | None, host: str
) -> Machine:
    """Return what the machine below ``root`` has; what it doesn't tell is left open, never guessed.

    Args:
        root: ``/``, or a captured machine with ``sys`` and ``proc``.
        environ: the job's environment, for CUDA_VISIBLE_DEVICES.
        allowed: the CPUs that this process may use; None: what the captured tree says, else all
            that are online there.
        host: this node's name.

    """
    tree = Tree(root)
    processors = read_processors(tree, allowed)
    nodes = read_nodes(tree, processors.online)
    listing = list_gpus(tree)
    gpus = _placed(listing, Locator(tree, nodes, processors))
    visible = select_visible(gpus, environ, listing.source)
    return Machine(
        host=host,
        allowed=processors.allowed,
        nodes=nodes,
        packages=processors.packages,
        cores=processors.cores,
        cores_known=processors.cores_known,
        caches=processors.caches,
        gpus=gpus,
        sites=tuple(Site(gpu.bdf, gpu.numa_node) for gpu in gpus),
        visible=visible.gpus,
        visible_origin=visible.origin,
        visible_remark=visible.remark,
        cpu_quota=cpu_quota(tree),
    )


def _placed(listing: Listing, locator: Locator) -> tuple[Gpu, ...]:
    gpus = []
    for index, device in enumerate(listing.devices):
        locality = locator.locate(device.bdf)
        gpus.append(Gpu(index, device.bdf, device.uuid, locality.node, locality.source))
    return tuple(gpus)
