"""CPUs that the workers of a place share with each other (BINDING.md S5: node, near, socket)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import Machine, NumaNode
from launcher.planning.homes import Home
from launcher.planning.rivals import hidden_sites


def of_node(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of its nodes."""
    return [CpuSet(home.cpus & machine.allowed) for home in homes]


def of_socket(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of the packages that its nodes are in."""
    return [CpuSet(_around(machine, home) & machine.allowed) for home in homes]


def _around(machine: Machine, home: Home) -> CpuSet:
    at_nodes = CpuSet.union_of(spot.cpus for spot in home.spots if not spot.is_pinned)
    return CpuSet.union_of([home.cpus, *_packages_of(machine, at_nodes)])


def _packages_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    return [package for package in machine.packages if package & cpus]


def of_near(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of its nodes, and of idle nodes of the same package.

    Each idle node is given to one node that has workers.
    """
    owned = {node for home in homes for node in home.nodes}
    at_nodes = [
        {node for spot in home.spots if not spot.is_pinned for node in spot.nodes} for home in homes
    ]
    workers = Counter(node for nodes in at_nodes for node in nodes)
    owners = [node for node in machine.nodes if node.id in workers]
    shares = {node.id: CpuSet(node.cpus & machine.allowed) for node in owners}
    for idle in machine.nodes:
        if idle.id not in owned and not _is_for_others(idle, machine):
            owner = _nearest(idle, _neighbours(idle, machine, owners), shares, workers)
            if owner is not None:
                shares[owner] = CpuSet(shares[owner] | (idle.cpus & machine.allowed))
    return [
        CpuSet.union_of([home.cpus & machine.allowed, *(shares[node] for node in nodes)])
        for home, nodes in zip(homes, at_nodes, strict=True)
    ]


def _is_for_others(idle: NumaNode, machine: Machine) -> bool:
    """Return whether a GPU that is hidden from this job hangs there, and nothing else keeps us away."""
    # Of a node that is not all ours, the part that is belongs to nobody else.
    is_whole = idle.cpus <= machine.allowed
    return is_whole and any(site.numa_node == idle.id for site in hidden_sites(machine))


def _neighbours(idle: NumaNode, machine: Machine, owners: Iterable[NumaNode]) -> set[int]:
    """Return the ids of the owners in the same package as ``idle``; none where that isn't known."""
    around = CpuSet.union_of(_packages_of(machine, idle.cpus))
    return {node.id for node in owners if node.cpus & around}


def _nearest(
    idle: NumaNode,
    neighbours: Iterable[int],
    shares: Mapping[int, CpuSet],
    workers: Mapping[int, int],
) -> int | None:
    # Where distances tie, as within most packages, the workers with the fewest CPUs gain.
    return min(
        neighbours,
        key=lambda home: (idle.distances.get(home, 0), len(shares[home]) / workers[home], home),
        default=None,
    )
