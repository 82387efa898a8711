"""The machine as one job may use it: the user's NUMA map, the chosen GPUs and the assigned node applied."""

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import JobSpec
from clusterrun.domain.machine import Machine
from clusterrun.planning.devices import with_devices


def machine_for(job: JobSpec, machine: Machine) -> Machine:
    """Return the inspected ``machine`` as ``job`` may use it; every plan is made from that.

    Raises:
        UsageError: --numa-map or --devices names a GPU, a node or a CPU that is not on the machine.

    """
    if job.numa_map.value:
        from clusterrun.planning.binding.numa_map import with_map

        machine = with_map(machine, job.numa_map)
    return _on_assigned_node(job, with_devices(machine, job.devices))


def _on_assigned_node(job: JobSpec, machine: Machine) -> Machine:
    """Leave the job the CPUs of the NUMA node that its platform assigned to it.

    Every worker belongs to that node, wherever its GPU is: the CPUs of the other nodes are another
    job's. A node that does not exist, or of which no CPU is allowed, is ignored.
    """
    node = next((node for node in machine.nodes if node.id == job.numa_node.value), None)
    allowed = CpuSet(node.cpus & machine.allowed) if node else CpuSet()
    if node is None or not allowed:
        return machine
    visible = tuple(replace(gpu, numa_node=node.id) for gpu in machine.visible)
    return replace(machine, allowed=allowed, visible=visible)
