"""CPUs that workers share with each other (docs/binding.md S5: node, socket, near)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine, NumaNode
from clusterrun.planning.binding.cores import cores_of
from clusterrun.planning.binding.gpu_assignment import Assignment, for_each, hidden_gpus


def of_node(machine: Machine, assignments: Sequence[Assignment]) -> list[CpuSet]:
    """Return for each worker the CPUs of its nodes."""
    return for_each(assignments, lambda worker: CpuSet(worker.cpus & machine.allowed))


def of_socket(machine: Machine, assignments: Sequence[Assignment]) -> list[CpuSet]:
    """Return for each worker the CPUs of the packages that its nodes are in."""

    def in_packages(worker: Assignment) -> CpuSet:
        at_nodes = CpuSet.union_of(local.cpus for local in worker.local if not local.is_mapped)
        all_cpus = CpuSet.union_of([worker.cpus, *packages_of(machine, at_nodes)])
        return CpuSet(all_cpus & machine.allowed)

    return for_each(assignments, in_packages)


def packages_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the packages that some of ``cpus`` are in."""
    return [package for package in machine.packages if package & cpus]


def of_near(machine: Machine, assignments: Sequence[Assignment]) -> list[CpuSet]:
    """Return for each worker the CPUs of its nodes, and of idle nodes of the same package.

    Each idle node is added to the nearest node with workers. If there are fewer idle nodes than
    nearest nodes, the cores of the idle nodes are divided among these.
    """
    workers = Counter(node for nodes in for_each(assignments, _own_nodes) for node in nodes)
    owners = [node for node in machine.nodes if node.id in workers]
    extended = {node.id: CpuSet(node.cpus & machine.allowed) for node in owners}
    idle = _idle_nodes(machine, assignments)
    nearest = {node.id: _nearest_owners(node, machine, owners) for node in idle}
    for node in idle:
        takers = nearest[node.id]
        together = [other for other in idle if nearest[other.id] == takers]
        if len(together) >= len(takers):
            _add(takers, [CpuSet(node.cpus & machine.allowed)], extended, workers)
        elif node is together[0]:
            cpus = CpuSet.union_of(other.cpus for other in together)
            _add(takers, cores_of(machine, CpuSet(cpus & machine.allowed)), extended, workers)

    def cpus_of(worker: Assignment) -> CpuSet:
        own = worker.cpus & machine.allowed
        return CpuSet.union_of([own, *(extended[node] for node in _own_nodes(worker))])

    return for_each(assignments, cpus_of)


def _own_nodes(worker: Assignment) -> frozenset[int]:
    """Return the nodes that idle ones may be added to; none for CPUs from --numa-map."""
    return frozenset(node for local in worker.local if not local.is_mapped for node in local.nodes)


def _idle_nodes(machine: Machine, assignments: Sequence[Assignment]) -> list[NumaNode]:
    used = {node for nodes in for_each(assignments, lambda it: it.nodes) for node in nodes}
    return [
        node
        for node in machine.nodes
        if node.id not in used and node.cpus & machine.allowed and not _is_for_others(node, machine)
    ]


def _is_for_others(idle: NumaNode, machine: Machine) -> bool:
    """Return whether the node has a GPU that is hidden from this job, and no cpuset divides the node."""
    is_whole = idle.cpus <= machine.allowed
    return is_whole and any(gpu.numa_node == idle.id for gpu in hidden_gpus(machine))


def _nearest_owners(idle: NumaNode, machine: Machine, owners: Iterable[NumaNode]) -> list[int]:
    """Return the nearest nodes with workers in the package of ``idle``; [] if that is unknown."""
    package = CpuSet.union_of(packages_of(machine, idle.cpus))
    distances = {node.id: idle.distances.get(node.id, 0) for node in owners if node.cpus & package}
    least = min(distances.values(), default=0)
    return sorted(node for node, distance in distances.items() if distance == least)


def _add(
    takers: Sequence[int],
    units: Sequence[CpuSet],
    extended: dict[int, CpuSet],
    workers: Mapping[int, int],
) -> None:
    """Add each unit of CPUs to the node whose workers have the fewest CPUs each."""
    if not takers:
        return
    sizes = {node: len(extended[node]) for node in takers}
    turns = []
    for unit in units:
        smallest = min(takers, key=lambda node: (sizes[node] / workers[node], node))
        sizes[smallest] += len(unit)
        turns.append(smallest)
    # Neighbouring units go to the same node.
    for node, unit in zip(sorted(turns), units, strict=True):
        extended[node] = CpuSet(extended[node] | unit)
