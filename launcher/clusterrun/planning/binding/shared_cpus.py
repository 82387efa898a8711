"""CPUs that workers share with each other (docs/binding.md S5: node, socket)."""

from collections.abc import Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.gpu_assignment import Assignment, for_each


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
