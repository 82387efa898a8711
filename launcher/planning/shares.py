"""Which CPUs each NUMA node gives to the workers that belong to it (BINDING.md S4 and S5)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from launcher.domain.cpuset import CpuSet
from launcher.domain.job import NumaBinding
from launcher.domain.machine import Machine, NumaNode


def allowed_on(node: NumaNode, machine: Machine) -> CpuSet:
    """Return the CPUs of ``node`` that this job may use."""
    return CpuSet(node.cpus & machine.allowed)


def share_out(mode: NumaBinding, machine: Machine, homes: Sequence[NumaNode]) -> dict[int, CpuSet]:
    """Return the CPUs that the workers of each node may use, by node id.

    Args:
        mode: anything but ``NODE`` gives away the nodes that have no worker.
        machine: where the nodes are.
        homes: the node of each worker that has one.

    """
    shares = {node.id: allowed_on(node, machine) for node in homes}
    if mode is NumaBinding.NODE:
        return shares
    workers = Counter(node.id for node in homes)
    for idle in machine.nodes:
        if idle.id not in workers:
            owner = _nearest(idle, _neighbours(idle, machine, homes), shares, workers)
            if owner is not None:
                shares[owner] = CpuSet(shares[owner] | allowed_on(idle, machine))
    return shares


def _neighbours(idle: NumaNode, machine: Machine, homes: Iterable[NumaNode]) -> set[int]:
    """Return the ids of the homes in the same package as ``idle``; none where that isn't known."""
    around = CpuSet.union_of(package for package in machine.packages if package & idle.cpus)
    return {node.id for node in homes if node.cpus & around}


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
