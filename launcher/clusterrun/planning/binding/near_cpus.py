"""CPUs of a worker's own nodes, and of idle nodes of the same package (docs/binding.md S5: near)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine, NumaNode
from clusterrun.planning.binding.exclusive_cpus import cores_of
from clusterrun.planning.binding.gpu_assignment import Home, for_each
from clusterrun.planning.binding.other_jobs import hidden_gpus
from clusterrun.planning.binding.shared_cpus import packages_of


def of_near(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of its nodes, and of idle nodes of the same package.

    Each idle node is given to the nearest node that has workers. If there are fewer idle nodes than
    nearest nodes, the cores of the idle nodes are dealt out.
    """
    workers = Counter(node for nodes in for_each(homes, _nodes_of) for node in nodes)
    owners = [node for node in machine.nodes if node.id in workers]
    shares = {node.id: CpuSet(node.cpus & machine.allowed) for node in owners}
    idle = _idle_nodes(machine, homes)
    nearest = {node.id: _nearest(node, _neighbours(node, machine, owners)) for node in idle}
    for node in idle:
        takers = nearest[node.id]
        together = [other for other in idle if nearest[other.id] == takers]
        if len(together) >= len(takers):
            _give(takers, node.cpus & machine.allowed, shares, workers)
        elif node is together[0]:
            _deal_out(takers, _cores_of(machine, together), shares, workers)

    def share_of(home: Home) -> CpuSet:
        own = home.cpus & machine.allowed
        return CpuSet.union_of([own, *(shares[node] for node in _nodes_of(home))])

    return for_each(homes, share_of)


def _nodes_of(home: Home) -> frozenset[int]:
    """Return the nodes that idle ones may be added to; none for CPUs that the user has named."""
    return frozenset(node for spot in home.spots if not spot.is_pinned for node in spot.nodes)


def _idle_nodes(machine: Machine, homes: Sequence[Home]) -> list[NumaNode]:
    owned = {node for nodes in for_each(homes, lambda home: home.nodes) for node in nodes}
    return [
        node
        for node in machine.nodes
        if node.id not in owned
        and node.cpus & machine.allowed
        and not _is_for_others(node, machine)
    ]


def _is_for_others(idle: NumaNode, machine: Machine) -> bool:
    """Return whether a GPU that is hidden from this job hangs there, and nothing else keeps us away."""
    # Of a node that is not all ours, the part that is belongs to nobody else.
    is_whole = idle.cpus <= machine.allowed
    return is_whole and any(gpu.numa_node == idle.id for gpu in hidden_gpus(machine))


def _neighbours(idle: NumaNode, machine: Machine, owners: Iterable[NumaNode]) -> list[int]:
    """Return the ids of the owners in the same package as ``idle``; none where that isn't known."""
    around = CpuSet.union_of(packages_of(machine, idle.cpus))
    return sorted(node.id for node in owners if node.cpus & around)


def _nearest(idle: NumaNode, neighbours: Sequence[int]) -> list[int]:
    least = min((idle.distances.get(node, 0) for node in neighbours), default=0)
    return [node for node in neighbours if idle.distances.get(node, 0) == least]


def _cores_of(machine: Machine, nodes: Iterable[NumaNode]) -> list[CpuSet]:
    together = CpuSet.union_of(node.cpus for node in nodes)
    return cores_of(machine, CpuSet(together & machine.allowed))


def _give(
    takers: Sequence[int],
    cpus: Iterable[int],
    shares: dict[int, CpuSet],
    workers: Mapping[int, int],
) -> None:
    """Add a whole node to the share of those takers whose workers have the fewest CPUs each."""
    if takers:
        poorest = min(takers, key=lambda node: (len(shares[node]) / workers[node], node))
        shares[poorest] = CpuSet(shares[poorest].union(cpus))


def _deal_out(
    takers: Sequence[int],
    cores: Sequence[CpuSet],
    shares: dict[int, CpuSet],
    workers: Mapping[int, int],
) -> None:
    """Add cores to the shares so that all workers have as many CPUs each as can be."""
    sizes = {node: len(shares[node]) for node in takers}
    turns = []
    for core in cores:
        poorest = min(takers, key=lambda node: (sizes[node] / workers[node], node))
        sizes[poorest] += len(core)
        turns.append(poorest)
    # Cores beside each other go to the same taker.
    for node, core in zip(sorted(turns), cores, strict=True):
        shares[node] = CpuSet(shares[node] | core)
