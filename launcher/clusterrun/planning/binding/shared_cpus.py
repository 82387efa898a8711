"""CPUs that the workers of a place share with each other (docs/binding.md S5: node, socket)."""

from collections.abc import Sequence

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.gpu_assignment import Home, for_each


def of_node(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of its nodes."""
    return for_each(homes, lambda home: CpuSet(home.cpus & machine.allowed))


def of_socket(machine: Machine, homes: Sequence[Home]) -> list[CpuSet]:
    """Return for each home the CPUs of the packages that its nodes are in."""
    return for_each(homes, lambda home: CpuSet(_around(machine, home) & machine.allowed))


def packages_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the packages that some of ``cpus`` are in."""
    return [package for package in machine.packages if package & cpus]


def _around(machine: Machine, home: Home) -> CpuSet:
    at_nodes = CpuSet.union_of(spot.cpus for spot in home.spots if not spot.is_pinned)
    return CpuSet.union_of([home.cpus, *packages_of(machine, at_nodes)])
