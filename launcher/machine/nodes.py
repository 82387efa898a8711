"""Readers of /sys/devices/system/node: the NUMA nodes."""

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import NumaNode
from launcher.machine.tree import Tree

_NODES = "sys/devices/system/node"


def read_nodes(tree: Tree, online: CpuSet) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes that are online, by id, with those of their CPUs that are ``online``.

    Node ids are labels: they may be sparse, and ``possible`` may name nodes that do not exist.
    No node at all is what a kernel without NUMA shows.
    """
    ids = _ids(tree)
    return tuple(
        NumaNode(number, CpuSet(_cpus(tree, number) & online), _distances(tree, number, ids))
        for number in ids
    )


def _ids(tree: Tree) -> tuple[int, ...]:
    names = (name.removeprefix("node") for name in tree.names(_NODES) if name.startswith("node"))
    present = {int(number) for number in names if number.isdecimal()}
    # Node lists have the form of CPU lists.
    listed = tree.cpu_list(f"{_NODES}/online")
    return tuple(sorted(present & listed if listed else present))


def _cpus(tree: Tree, number: int) -> CpuSet:
    directory = f"{_NODES}/node{number}"
    return tree.cpu_list(f"{directory}/cpulist") or tree.cpu_map(f"{directory}/cpumap")


def _distances(tree: Tree, number: int, ids: tuple[int, ...]) -> dict[int, int]:
    columns = tree.text(f"{_NODES}/node{number}/distance").split()
    # One column for each node that is online, by id; with another number they can't be told apart.
    if len(columns) != len(ids) or not all(column.isdecimal() for column in columns):
        return {}
    return dict(zip(ids, map(int, columns), strict=True))
