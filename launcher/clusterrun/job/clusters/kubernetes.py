"""Kubernetes: pods of an Indexed Job."""

from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.clusters.scheduler import Scheduler

SCHEDULER = Scheduler("Kubernetes", has_id=False)
"""The Job starts another pod depending on the exit code: docs/suspend.md."""


def indexed_job(v: Variables, context: DetectionContext) -> Found:
    """A Kubernetes Indexed Job: a pod knows its index, but not the number of pods.

    kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode". Many Indexed Jobs are
    independent tasks, so the user must ask for several nodes. JobSet and Kubeflow's Trainer v2 build
    on Indexed Jobs; the latter sets the other values by PET_ variables.
    """
    index, nodes = v.require("JOB_COMPLETION_INDEX"), context.nnodes
    if nodes is None:
        line = context.line.quoted("--nnodes", "N", "--master-addr", "JOB-0.SERVICE")
        warning = (
            f"pod {index.value} of an Indexed Job ({index.origin}) runs alone;"
            f" for one job on N pods, run: {line}"
        )
        return Found(overridable=True, warnings=(warning,))
    if nodes.value == 1:
        return Found(overridable=True)
    # Not `node`, which checks the rank: an option may set another one.
    return Found(nnodes=nodes, node_rank=index, overridable=True)
