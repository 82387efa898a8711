"""OMP_NUM_THREADS: how many threads a worker's loops may use (BINDING.md S8)."""

from collections.abc import Iterable, Sequence

from launcher.domain.cpuset import CpuSet
from launcher.domain.machine import Machine
from launcher.planning.binding import Placement


def threads_per_worker(machine: Machine, placements: Sequence[Placement]) -> int:
    """Return the physical cores that every worker of this node can have to itself, at least 1.

    It is one number for the node, the smallest share: the OpenMP runtime reads it when it is
    loaded, and in a forked worker that was before the fork. A limit on CPU time counts too.
    """
    shares = [_share(machine, placement, placements) for placement in placements]
    if machine.cpu_quota is not None:
        shares.append(int(machine.cpu_quota / len(placements)))
    return max(1, min(shares))


def _share(machine: Machine, placement: Placement, placements: Sequence[Placement]) -> int:
    if placement.cpus is None:
        return _count_cores(machine, machine.allowed) // len(placements)
    masks = (other.cpus for other in placements if other.cpus is not None)
    return _count_cores(machine, placement.cpus) // _count_meeting(placement.cpus, masks)


def _count_meeting(cpus: CpuSet, masks: Iterable[CpuSet]) -> int:
    # Firmware tables may let nodes overlap: whoever may run on some of the CPUs has a part of them.
    return sum(1 for mask in masks if mask & cpus)


def _count_cores(machine: Machine, cpus: CpuSet) -> int:
    known = [core for core in machine.cores if core & cpus]
    return len(known) + len(cpus - CpuSet.union_of(known))
