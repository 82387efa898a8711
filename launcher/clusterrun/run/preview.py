"""What a launch would do, here or on a machine that was captured; starts nothing."""

from collections.abc import Mapping

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import NodePlan
from clusterrun.job.resolve import Resolved
from clusterrun.planning.assumed import assumed_world
from clusterrun.planning.job_machine import local_size
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.variables import environment_before
from clusterrun.run.job_machine import inspect_source, job_machine, source_of


def preview(resolved: Resolved, environ: Mapping[str, str]) -> tuple[Machine, NodePlan]:
    """Return the machine, and what ``launch`` would start on it; chooses no port.

    Raises:
        UsageError: the job can't be run there as described, or no machine was captured there.

    """
    job = resolved.job
    source = source_of(resolved, environ)
    machine = job_machine(resolved, source)
    plan = plan_node(
        job,
        machine,
        assumed_world(job, local_size(job, machine)),
        unset=resolved.unset,
        error_files=None,
        environ=source.variables,
    )
    return machine, plan


def capture(resolved: Resolved, environ: Mapping[str, str]) -> bytes:
    """Return the text of a file with all that is read of the machine, whatever a plan makes of it.

    Raises:
        UsageError: no machine was captured where the job says.

    """
    from clusterrun.machine.capture import written_capture

    source = source_of(resolved, environ)
    machine = inspect_source(resolved, source)
    environment = environment_before(resolved.job, source.variables, resolved.unset)
    return written_capture(source.tree, environment, CpuSet(machine.allowed | machine.isolated))
