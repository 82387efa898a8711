"""Physical cores: how many a set of CPUs has, and which."""

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine


class CoreCounter:
    """Counts the physical cores of sets of CPUs; a CPU whose core is unknown counts as one."""

    def __init__(self, machine: Machine) -> None:
        self._core_of = {cpu: at for at, core in enumerate(machine.cores) for cpu in core}

    def count(self, cpus: CpuSet) -> int:
        return len({self._core_of.get(cpu, -1 - cpu) for cpu in cpus})


def cores_of(machine: Machine, cpus: CpuSet) -> list[CpuSet]:
    """Return the part of each core that is in ``cpus``, ordered by L3 cache and lowest CPU."""
    cores = [CpuSet(core & cpus) for core in machine.cores if core & cpus]
    cores += [CpuSet((cpu,)) for cpu in cpus - CpuSet.union_of(cores)]
    return sorted(cores, key=lambda core: (first_of_cache(machine, core), min(core)))


def first_of_cache(machine: Machine, core: CpuSet) -> int:
    """Return the lowest CPU that shares the core's L3 cache; the core's own if that is unknown."""
    return next((min(cache) for cache in machine.caches if min(core) in cache), min(core))
