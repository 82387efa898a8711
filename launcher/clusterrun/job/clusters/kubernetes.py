"""Kubernetes: pods of an Indexed Job."""

from clusterrun.job.clusters.found import Found, Launch, Variables
from clusterrun.job.clusters.scheduler import Scheduler

SCHEDULER = Scheduler("Kubernetes", has_id=False)
"""Its Job starts another pod by the exit code: docs/suspend.md."""


def indexed_job(v: Variables, launch: Launch) -> Found:
    """A Kubernetes Indexed Job: a pod knows its index, but not the number of pods.

    kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode". Many such jobs are a
    hundred independent tasks, so several nodes must be asked for. JobSet and Kubeflow's Trainer v2
    build on it; the latter sets the rest by PET_ variables.
    """
    index, nodes = v.require("JOB_COMPLETION_INDEX"), launch.nnodes
    if nodes is None:
        line = launch.line.line("--nnodes", "N", "--master-addr", "JOB-0.SERVICE")
        warning = (
            f"pod {index.value} of an Indexed Job ({index.origin}) runs alone;"
            f" for one job on N pods, type: {line}"
        )
        return Found(yields=True, warnings=(warning,))
    if nodes.value == 1:
        return Found(yields=True)
    # Not `node`: options may also give the rank that the index is not.
    return Found(nnodes=nodes, node_rank=index, yields=True)
