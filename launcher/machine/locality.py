"""Which NUMA node a GPU is local to, and what told it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import NumaNode
from launcher.machine import pci
from launcher.machine.processors import Processors
from launcher.machine.tree import Tree


class Locality(NamedTuple):
    """A node that has CPUs, or None, and what told it."""

    node: int | None
    source: str


class Locator:
    """Finds the node of a PCI device by the first source that knows it (BINDING.md S3).

    Not asked yet: a map given by the user, NVML's affinity, and KFD's links.
    """

    def __init__(self, tree: Tree, nodes: Sequence[NumaNode], processors: Processors) -> None:
        """Take the machine's ``nodes`` and CPUs; devices are looked up in ``tree`` once."""
        self._tree = tree
        self._nodes: Mapping[int, NumaNode] = {node.id: node for node in nodes}
        self._processors = processors
        self._directories = pci.device_directories(tree)

    def locate(self, bdf: str) -> Locality:
        """Return the node of the device with the normalised address ``bdf``."""
        directory = self._directories.get(bdf)
        found = self._by_device(directory) if directory else None
        return found or self._by_single_node() or Locality(None, "unknown")

    def _by_device(self, directory: str) -> Locality | None:
        return (
            self._by_number(directory, "sysfs numa_node")
            or self._by_local_cpus(directory)
            or self._by_ancestors(directory)
        )

    def _by_number(self, directory: str, source: str) -> Locality | None:
        # -1 is "not known", and a node that isn't online tells as little: never node 0 instead.
        number = self._tree.integer(f"{directory}/numa_node")
        node = None if number is None else self._nodes.get(number)
        if node is None:
            return None
        if node.cpus:
            return Locality(node.id, source)
        nearest = self._nearest_with_cpus(node)
        if nearest is None:
            return None
        return Locality(nearest.id, f"{source} {node.id}, nearest with CPUs")

    def _nearest_with_cpus(self, node: NumaNode) -> NumaNode | None:
        near = [
            other for other in self._nodes.values() if other.cpus and other.id in node.distances
        ]
        return min(near, key=lambda other: (node.distances[other.id], other.id), default=None)

    def _by_local_cpus(self, directory: str) -> Locality | None:
        for name, read in (
            # Where the two differ the list is right.
            ("local_cpulist", self._tree.cpu_list),
            ("local_cpus", self._tree.cpu_map),
        ):
            local = CpuSet(read(f"{directory}/{name}") & self._processors.online)
            node = self._smallest_around(local)
            if node is not None:
                return Locality(node.id, f"sysfs {name}")
        return None

    def _smallest_around(self, cpus: CpuSet) -> NumaNode | None:
        # All CPUs of the machine is what the kernel says of a device whose place it doesn't know.
        if not cpus or cpus == self._processors.online:
            return None
        around = [node for node in self._nodes.values() if cpus <= node.cpus]
        return min(around, key=lambda node: (len(node.cpus), node.id), default=None)

    def _by_ancestors(self, directory: str) -> Locality | None:
        for parent in self._tree.parents(directory):
            found = self._by_number(parent, f"sysfs numa_node of {parent.rpartition('/')[2]}")
            if found:
                return found
        return None

    def _by_single_node(self) -> Locality | None:
        allowed = self._processors.allowed
        usable = [node for node in self._nodes.values() if node.cpus & allowed]
        # CPUs that no node lists would be lost by binding to the one that there is.
        if len(usable) == 1 and allowed <= usable[0].cpus:
            return Locality(usable[0].id, "single node")
        return None
