"""Platforms that give one NUMA node of a machine to each of two jobs."""

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import JobSpec
from clusterrun.domain.machine import Machine


def assigned_part(job: JobSpec, machine: Machine) -> Machine:
    """Return the part of ``machine`` that ``job`` may use; all where nobody has assigned any.

    There every worker belongs to the assigned node, wherever its GPU hangs: the CPUs of the other
    node are another job's. A node that is not there, or of which nothing is allowed, assigns nothing.
    """
    node = next((node for node in machine.nodes if node.id == job.numa_node.value), None)
    allowed = CpuSet(node.cpus & machine.allowed) if node else CpuSet()
    if node is None or not allowed:
        return machine
    return replace(
        machine,
        allowed=allowed,
        nodes=(node,),
        visible=tuple(replace(gpu, numa_node=node.id) for gpu in machine.visible),
    )
