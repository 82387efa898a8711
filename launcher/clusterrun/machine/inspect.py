"""Reads all that a plan needs to know about a machine."""

from collections.abc import Mapping

from clusterrun.cpuset import CpuSet
from clusterrun.machine.cgroup import cpu_quota, cpuset_of
from clusterrun.machine.cpus import read_nodes, read_processors
from clusterrun.machine.gpus import gpus
from clusterrun.machine.gpus.locality import Locator
from clusterrun.machine.machine import Machine, PciGpu
from clusterrun.machine.tree import Tree


def inspect(tree: Tree, environ: Mapping[str, str], allowed: CpuSet | None, host: str) -> Machine:
    """Return the machine of ``tree``. What it does not show stays unknown and is never guessed.

    Args:
        tree: this machine, or a captured one.
        environ: the job's environment, for CUDA_VISIBLE_DEVICES and the like.
        allowed: this process's CPU affinity; None: that in the captured tree, else all online CPUs.
        host: the name of the node.

    """
    processors = read_processors(tree, allowed)
    nodes = read_nodes(tree, processors.online)
    locator = Locator(tree, nodes, processors)
    ours, accelerators = tuple(map(locator.with_numa_node, gpus.list_gpus(tree))), ""
    known = {gpu.bdf: gpu.numa_node for gpu in ours}
    if not ours:
        from clusterrun.machine.gpus.accelerators import accelerators_warning

        accelerators = accelerators_warning(tree)
    visible = gpus.visible(tree, ours, environ)
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
            for bdf in gpus.addresses(tree, ours)
        ),
        visible=visible.gpus,
        visible_origin=visible.origin,
        visible_warning=visible.warning,
        cpu_quota=cpu_quota(tree),
        cpuset=cpuset_of(tree),
        isolated=processors.isolated,
        excluded_cpus=processors.excluded_cpus,
        accelerators=accelerators,
    )
