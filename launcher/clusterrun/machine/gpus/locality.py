"""The NUMA node that a GPU is local to, and the source of that (docs/binding.md S3)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import NumaNode, nearest_with_cpus
from clusterrun.machine.cpus import Processors
from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import Device
from clusterrun.machine.tree import Tree

if TYPE_CHECKING:
    from clusterrun.machine.gpus.amd import Topology


class Locality(NamedTuple):
    """A node that has CPUs, or None, and the source of that."""

    node: int | None
    source: str


UNKNOWN = Locality(None, "unknown")


class _Answer(NamedTuple):
    """One source's answer on a GPU's place."""

    nodes: frozenset[int]
    """Nodes that have CPUs; several if they are equally near."""
    source: str


class Locator:
    """Finds the node of a GPU by the first source that has it (docs/binding.md S3.2 to S3.8)."""

    def __init__(self, tree: Tree, nodes: Sequence[NumaNode], processors: Processors) -> None:
        self._tree = tree
        self._nodes: Mapping[int, NumaNode] = {node.id: node for node in nodes}
        self._processors = processors
        self._located: dict[Device, Locality] = {}

    def locate(self, device: Device) -> Locality:
        """Return the node of a GPU, which is looked up once."""
        found = self._located.get(device)
        if found is None:
            found = self._located[device] = self._first_of(self._answers(device))
        return found

    def locate_address(self, bdf: str) -> Locality:
        """Return the node of a GPU of which only the normalised address is known."""
        return self._first_of(self._by_bus(bdf))

    def _first_of(self, answers: Iterator[_Answer]) -> Locality:
        """Return the first answer's node; if it has several, the one that a later answer has, too."""
        first = next(answers, None)
        if first is None:
            return self._by_single_node() or UNKNOWN
        nodes, source = first
        for other in answers if len(nodes) > 1 else ():
            if len(nodes & other.nodes) == 1:
                return Locality(min(nodes & other.nodes), f"{source} by {other.source}")
        return Locality(min(nodes), source)

    def _answers(self, device: Device) -> Iterator[_Answer]:
        # NVML and KFD see the whole machine, and /sys is what a container shows.
        yield from self._by_bus(device.bdf)
        yield from self._by_nvml(device)
        yield from self._by_kfd(device)

    def _by_bus(self, bdf: str) -> Iterator[_Answer]:
        directory = pci.directory_of(self._tree, bdf) if bdf else None
        if directory is not None:
            yield from self._by_number(directory, "sysfs numa_node")
            yield from self._by_local_cpus(directory)
            yield from self._by_ancestors(directory)

    def _by_number(self, directory: str, source: str) -> Iterator[_Answer]:
        # -1 is "unknown", and so is a node that is not online: never take node 0 instead.
        number = self._tree.integer(f"{directory}/numa_node")
        if number is not None:
            yield from self._at(number, source)

    def _at(self, number: int, source: str) -> Iterator[_Answer]:
        node = self._nodes.get(number)
        if node is not None and node.cpus:
            yield _Answer(frozenset({node.id}), source)
        elif node is not None and (nearest := nearest_with_cpus(node, self._nodes.values())):
            ids = frozenset(other.id for other in nearest)
            yield _Answer(ids, f"{source} {node.id}, nearest with CPUs")

    def _by_local_cpus(self, directory: str) -> Iterator[_Answer]:
        for name, read in (
            ("local_cpulist", self._tree.cpu_list),
            ("local_cpus", self._tree.cpu_map),
        ):
            local = read(f"{directory}/{name}")
            if local:
                # If the two differ the list is right, even if no node has these CPUs.
                yield from self._around(local, f"sysfs {name}")
                return

    def _around(self, local: CpuSet, source: str) -> Iterator[_Answer]:
        node = self._smallest_around(local)
        if node is not None:
            yield _Answer(frozenset({node.id}), source)

    def _smallest_around(self, local: CpuSet) -> NumaNode | None:
        # The kernel lists all CPUs for a device whose place it does not know.
        cpus = local & self._processors.online
        if not cpus or cpus == self._processors.online:
            return None
        around = [node for node in self._nodes.values() if cpus <= node.cpus]
        return min(around, key=lambda node: (len(node.cpus), node.id), default=None)

    def _by_ancestors(self, directory: str) -> Iterator[_Answer]:
        for parent in self._tree.parents(directory):
            yield from self._by_number(parent, f"sysfs numa_node of {parent.rpartition('/')[2]}")

    def _by_nvml(self, device: Device) -> Iterator[_Answer]:
        yield from self._around(device.cpus, "NVML CPU affinity")
        # A GPU with memory nodes of its own has several nodes: which one is near is unknown.
        (number, *others) = sorted(device.nodes) or (-1,)
        if not others:
            yield from self._at(number, "NVML memory affinity")

    def _by_kfd(self, device: Device) -> Iterator[_Answer]:
        if device.kfd_node is None:
            return
        with_cpus = sorted(node.id for node in self._nodes.values() if node.cpus)
        place = self._kfd.nearest_cpus(device.kfd_node)
        # KFD has only the order of NUMA nodes, not their ids: useless if their number differs.
        if place is not None and self._kfd.count_with_cpus == len(with_cpus):
            yield _Answer(frozenset({with_cpus[place]}), "KFD io_links")

    @cached_property
    def _kfd(self) -> "Topology":
        from clusterrun.machine.gpus.amd import Topology

        return Topology(self._tree)

    def _by_single_node(self) -> Locality | None:
        allowed = self._processors.allowed
        usable = [node for node in self._nodes.values() if node.cpus & allowed]
        # Binding to the only node would take away the CPUs that no node lists.
        if len(usable) == 1 and allowed <= usable[0].cpus:
            return Locality(usable[0].id, "single node")
        return None
