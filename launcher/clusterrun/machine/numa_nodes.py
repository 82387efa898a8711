"""The NUMA nodes, from /sys/devices/system/node."""

from collections.abc import Mapping

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import NumaNode
from clusterrun.machine.tree import Tree, number_of

_NODES = "sys/devices/system/node"


def read_nodes(tree: Tree, online: CpuSet) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that are online, by id, with those of their CPUs that are ``online``.

    Node ids are labels: they may be sparse, and ``possible`` may name nodes that do not exist.
    A kernel without NUMA shows no node.
    """
    ids = _ids(tree)
    memory = {number: _memory(tree, number) for number in ids}
    with_memory = _with_memory(tree, memory)
    return tuple(
        NumaNode(
            number,
            CpuSet(_cpus(tree, number) & online),
            _distances(tree, number, ids),
            number in with_memory,
            memory[number],
        )
        for number in ids
    )


def cpus_of_nodes(tree: Tree) -> CpuSet:
    """Return the CPUs that the kernel lists for all nodes that are online."""
    return CpuSet.union_of(_cpus(tree, number) for number in _ids(tree))


def _ids(tree: Tree) -> tuple[int, ...]:
    present = set(tree.numbers(_NODES, "node"))
    # Node lists have the form of CPU lists.
    listed = tree.cpu_list(f"{_NODES}/online")
    return tuple(sorted(present & listed if listed else present))


def _cpus(tree: Tree, number: int) -> CpuSet:
    directory = f"{_NODES}/node{number}"
    return tree.cpu_list(f"{directory}/cpulist") or tree.cpu_map(f"{directory}/cpumap")


def _distances(tree: Tree, number: int, ids: tuple[int, ...]) -> dict[int, int]:
    columns = [number_of(column) for column in tree.text(f"{_NODES}/node{number}/distance").split()]
    known = [column for column in columns if column is not None]
    # Each node that is online has a column, by id; other numbers of columns can't be matched.
    return dict(zip(ids, known, strict=True)) if len(ids) == len(columns) == len(known) else {}


def _with_memory(tree: Tree, memory: Mapping[int, int | None]) -> frozenset[int]:
    """Return the nodes with memory that our cpuset lets us use."""
    if len(memory) == 1:
        # The only node has all memory.
        return frozenset(memory)
    allowed = tree.own_status("Mems_allowed_list") or CpuSet(memory)
    listed = tree.cpu_list(f"{_NODES}/has_memory")
    known = {number for number, size in memory.items() if size is not None}
    others = listed - known if listed else allowed - known
    return frozenset(number for number in allowed if memory.get(number) or number in others)


def _memory(tree: Tree, number: int) -> int | None:
    # The line reads: Node 0 MemTotal: 8386704 kB.
    facts = tree.facts(f"{_NODES}/node{number}/meminfo", ":")
    size = number_of(facts.get(f"Node {number} MemTotal", "").removesuffix(" kB"))
    return None if size is None else size << 10
