"""Which NUMA node a GPU is local to, and what told it."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import NumaNode
from launcher.machine import pci
from launcher.machine.devices import Device
from launcher.machine.processors import Processors
from launcher.machine.tree import Tree

if TYPE_CHECKING:
    from launcher.machine.amd import Topology


class Locality(NamedTuple):
    """A node that has CPUs, or None, and what told it."""

    node: int | None
    source: str


UNKNOWN = Locality(None, "unknown")


class Locator:
    """Finds the node of a GPU by the first source that knows it (BINDING.md S3.2 to S3.8)."""

    def __init__(self, tree: Tree, nodes: Sequence[NumaNode], processors: Processors) -> None:
        """Take the machine's ``nodes`` and CPUs; GPUs are looked up in ``tree``."""
        self._tree = tree
        self._nodes: Mapping[int, NumaNode] = {node.id: node for node in nodes}
        self._processors = processors
        self._located: dict[Device, Locality] = {}

    def locate(self, device: Device) -> Locality:
        """Return the node of a GPU; each is looked up once."""
        found = self._located.get(device)
        if found is None:
            found = self._located[device] = self._locate(device)
        return found

    def _locate(self, device: Device) -> Locality:
        # NVML has its own view of a machine, KFD one of every machine; ours may be a container.
        return (
            self._by_bus(device.bdf)
            or self._by_nvml(device)
            or self._by_kfd(device)
            or self._by_single_node()
            or UNKNOWN
        )

    def locate_site(self, bdf: str) -> Locality:
        """Return the node of a GPU of which no more is known than its normalised address."""
        return self._by_bus(bdf) or self._by_single_node() or UNKNOWN

    def _by_bus(self, bdf: str) -> Locality | None:
        directory = pci.directory_of(self._tree, bdf) if bdf else None
        if directory is None:
            return None
        return (
            self._by_number(directory, "sysfs numa_node")
            or self._by_local_cpus(directory)
            or self._by_ancestors(directory)
        )

    def _by_number(self, directory: str, source: str) -> Locality | None:
        # -1 is "not known", and a node that isn't online tells as little: never node 0 instead.
        number = self._tree.integer(f"{directory}/numa_node")
        return None if number is None else self._at(number, source)

    def _at(self, number: int, source: str) -> Locality | None:
        node = self._nodes.get(number)
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
            ("local_cpulist", self._tree.cpu_list),
            ("local_cpus", self._tree.cpu_map),
        ):
            local = read(f"{directory}/{name}")
            if local:
                # Where the two differ the list is right, even if it tells nothing.
                node = self._smallest_around(local)
                return None if node is None else Locality(node.id, f"sysfs {name}")
        return None

    def _smallest_around(self, local: CpuSet) -> NumaNode | None:
        # All CPUs of the machine is what the kernel says of a device whose place it doesn't know.
        cpus = local & self._processors.online
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

    def _by_nvml(self, device: Device) -> Locality | None:
        node = self._smallest_around(device.cpus)
        if node is not None:
            return Locality(node.id, "NVML CPU affinity")
        # More than one, as of a GPU with memory nodes of its own, tells nothing.
        (number, *others) = sorted(device.nodes) or (-1,)
        return None if others else self._at(number, "NVML memory affinity")

    def _by_kfd(self, device: Device) -> Locality | None:
        if device.kfd_node is None:
            return None
        with_cpus = sorted(node.id for node in self._nodes.values() if node.cpus)
        place = self._kfd.nearest_cpus(device.kfd_node)
        # KFD has no ids of NUMA nodes, only their order; another number of them is another view.
        if place is None or self._kfd.count_with_cpus != len(with_cpus):
            return None
        return Locality(with_cpus[place], "KFD io_links")

    @cached_property
    def _kfd(self) -> "Topology":
        from launcher.machine.amd import Topology  # noqa: PLC0415 - only where its GPUs are

        return Topology(self._tree)

    def _by_single_node(self) -> Locality | None:
        allowed = self._processors.allowed
        usable = [node for node in self._nodes.values() if node.cpus & allowed]
        # CPUs that no node lists would be lost by binding to the one that there is.
        if len(usable) == 1 and allowed <= usable[0].cpus:
            return Locality(usable[0].id, "single node")
        return None
