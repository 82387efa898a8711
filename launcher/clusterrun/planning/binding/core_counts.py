"""How many physical cores a set of CPUs is on."""

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine


class CoreCounter:
    """Counts the physical cores of a machine; a CPU of which no core is known is one."""

    def __init__(self, machine: Machine) -> None:
        """Index the machine's cores once."""
        self._core_of = {cpu: at for at, core in enumerate(machine.cores) for cpu in core}

    def count(self, cpus: CpuSet) -> int:
        """Return the number of cores that ``cpus`` are on."""
        return len({self._core_of.get(cpu, -1 - cpu) for cpu in cpus})
