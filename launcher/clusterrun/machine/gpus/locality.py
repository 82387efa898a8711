"""Finds the NUMA node that a GPU is local to (docs/binding.md S3)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from clusterrun.cpuset import CpuSet
from clusterrun.machine.cpus import Processors
from clusterrun.machine.gpus import pci
from clusterrun.machine.machine import Gpu, NumaNode, nearest_nodes_with_cpus
from clusterrun.machine.tree import Tree, parse_cpus

if TYPE_CHECKING:
    from clusterrun.machine.gpus.amd import Topology

_Answer = tuple[frozenset[int], str]
"""The local NUMA nodes with CPUs from one source, several if they are equally near; the source."""


class Locality(NamedTuple):
    """A NUMA node with CPUs, None if unknown, and the source."""

    node: int | None
    source: str


class Locator:
    """Finds the NUMA node of a GPU by the first source that has it (docs/binding.md S3.2 to S3.8)."""

    def __init__(self, tree: Tree, nodes: Sequence[NumaNode], processors: Processors) -> None:
        self._tree = tree
        self._nodes: Mapping[int, NumaNode] = {node.id: node for node in nodes}
        self._processors = processors

    def with_numa_node(self, gpu: Gpu) -> Gpu:
        node, source = self._first_of(self._answers(gpu))
        return replace(gpu, numa_node=node, node_source=source)

    def locate_address(self, bdf: str) -> Locality:
        """Return the NUMA node of a GPU of which only the normalised PCI address is known."""
        return self._first_of(self._by_bus(bdf))

    def _first_of(self, answers: Iterator[_Answer]) -> Locality:
        """Return the first answer's node; if it has several, the one that a later answer also has."""
        first = next(answers, None)
        if first is None:
            return self._by_single_node()
        nodes, source = first
        for others, other in answers if len(nodes) > 1 else ():
            if len(nodes & others) == 1:
                return Locality(min(nodes & others), f"{source} by {other}")
        return Locality(min(nodes), source)

    def _answers(self, gpu: Gpu) -> Iterator[_Answer]:
        # /sys first, because it shows what the container has; NVML and KFD see the whole machine.
        yield from self._by_bus(gpu.bdf)
        yield from self._by_nvml(gpu)
        yield from self._by_kfd(gpu.hints.kfd_node)

    def _by_bus(self, bdf: str) -> Iterator[_Answer]:
        directory = pci.directory_of(self._tree, bdf) if bdf else None
        if directory is not None:
            yield from self._by_number(directory, "sysfs numa_node")
            yield from self._by_local_cpus(directory)
            yield from self._by_ancestors(directory)

    def _by_number(self, directory: str, source: str) -> Iterator[_Answer]:
        # -1 means unknown, and so does an offline node. Neither means node 0.
        number = self._tree.integer(f"{directory}/numa_node")
        if number is not None:
            yield from self._at(number, source)

    def _at(self, number: int, source: str) -> Iterator[_Answer]:
        node = self._nodes.get(number)
        if node is not None and node.cpus:
            yield frozenset({node.id}), source
        elif node is not None and (nearest := nearest_nodes_with_cpus(node, self._nodes.values())):
            ids = frozenset(other.id for other in nearest)
            yield ids, f"{source} {node.id}, nearest with CPUs"

    def _by_local_cpus(self, directory: str) -> Iterator[_Answer]:
        for name, read in (
            ("local_cpulist", self._tree.cpu_list),
            ("local_cpus", self._tree.cpu_map),
        ):
            local = read(f"{directory}/{name}")
            if local:
                # If the two files differ, the list is right, even if no node has these CPUs.
                yield from self._around(local, f"sysfs {name}")
                return

    def _around(self, local: CpuSet, source: str) -> Iterator[_Answer]:
        cpus = local & self._processors.online
        # The kernel lists all CPUs if it does not know a device's location.
        is_known = cpus and cpus != self._processors.online
        around = [node for node in self._nodes.values() if is_known and cpus <= node.cpus]
        if around:
            smallest = min(around, key=lambda node: (len(node.cpus), node.id))
            yield frozenset({smallest.id}), source

    def _by_ancestors(self, directory: str) -> Iterator[_Answer]:
        for parent in self._tree.parents(directory):
            yield from self._by_number(parent, f"sysfs numa_node of {parent.rpartition('/')[2]}")

    def _by_nvml(self, gpu: Gpu) -> Iterator[_Answer]:
        yield from self._around(parse_cpus(gpu.hints.cpus), "NVML CPU affinity")
        # A GPU with NUMA nodes for its own memory lists several, and which of them is near is unknown.
        (number, *others) = sorted(parse_cpus(gpu.hints.nodes)) or (-1,)
        if not others:
            yield from self._at(number, "NVML memory affinity")

    def _by_kfd(self, kfd_node: int | None) -> Iterator[_Answer]:
        if kfd_node is None:
            return
        with_cpus = sorted(node.id for node in self._nodes.values() if node.cpus)
        index = self._kfd.nearest_cpus(kfd_node)
        # KFD has only the order of NUMA nodes, not their ids, so their number must be the same.
        if index is not None and self._kfd.count_with_cpus == len(with_cpus):
            yield frozenset({with_cpus[index]}), "KFD io_links"

    @cached_property
    def _kfd(self) -> "Topology":
        from clusterrun.machine.gpus.amd import Topology

        return Topology(self._tree)

    def _by_single_node(self) -> Locality:
        allowed = self._processors.allowed
        usable = [node for node in self._nodes.values() if node.cpus & allowed]
        # If some CPUs belong to no node, binding to the only node would lose these.
        if len(usable) == 1 and allowed <= usable[0].cpus:
            return Locality(usable[0].id, "single node")
        return Locality(None, "unknown")
