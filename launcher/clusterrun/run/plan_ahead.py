"""What is planned before the nodes have joined: the fork server's preparation, a lone worker."""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.domain.machine import Machine
from clusterrun.domain.plan import NodePlan
from clusterrun.domain.world import World
from clusterrun.job.resolve import Resolved
from clusterrun.planning.assumed import assumed_world, lone_worker_world
from clusterrun.planning.job_machine import local_size
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.preparation import Preparation, preparation_of
from clusterrun.planning.remarks import strict_error
from clusterrun.run.job_machine import LocalJob, job_machine, source_of


def plan_preparation(local: LocalJob) -> Preparation | None:
    """Return what the fork server prepares while the nodes join; None if the job spawns.

    Raises:
        LauncherError: the job can't be run here as described.

    """
    resolved, environ = local.resolved, local.variables
    plan = _plan(resolved, local.machine, assumed_world(local.job, local.workers), environ)
    return preparation_of(local.job, plan, local.environment)


def plan_lone_worker(resolved: Resolved, environ: Mapping[str, str]) -> NodePlan:
    """Return the plan of the one worker that this process is to become.

    Raises:
        LauncherError: it would not be one worker, or rank 0's port is in use.

    """
    job = resolved.job
    machine = job_machine(resolved, source_of(resolved, environ))
    local_size(job, machine)
    return _plan(resolved, machine, lone_worker_world(job), environ)


def _plan(
    resolved: Resolved, machine: Machine, world: World, environ: Mapping[str, str]
) -> NodePlan:
    """Return what is planned before any worker starts; a strict job's binding is tried out."""
    job = resolved.job
    plan = plan_node(job, machine, world, unset=resolved.unset, error_files=None, environ=environ)
    if job.placing.numa_strict:
        from clusterrun.workers.in_this_process import binding_failures

        troubles = binding_failures(plan)
        if troubles:
            raise strict_error(job, plan.host, troubles)
    return plan
