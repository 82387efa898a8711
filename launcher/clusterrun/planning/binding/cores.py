"""Physical cores: how many a set of CPUs has, which, and whether they are enough for its workers."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.domain.counts import counted
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


class Shortage(Struct, frozen=True):
    """The workers whose CPUs are all in one mask."""

    workers: int
    cores: str
    """The cores that they share: ``1 core (CPUs 16) of the 17 that this job may use``."""


def shortages(machine: Machine, masks: Sequence[CpuSet]) -> Mapping[CpuSet, Shortage]:
    """Return the masks with fewer cores than workers, while other allowed cores have fewer workers each.

    On a machine with too few cores for all workers, no mask counts if all are equally full.
    ``masks`` has the CPUs of each worker; empty if it is not bound.
    """
    workers, counter = Counter(masks), CoreCounter(machine)
    total, allowed = len(masks), counter.count(machine.allowed)
    found = {}
    for mask in filter(None, workers):
        inside = sum(count for other, count in workers.items() if other and other <= mask)
        cores = counter.count(mask)
        if inside > cores and inside * (allowed - cores) > (total - inside) * cores:
            share = counted(cores, "core")
            share += f" (CPUs {mask}) of the {allowed} that this job may use"
            found[mask] = Shortage(inside, share)
    return found
