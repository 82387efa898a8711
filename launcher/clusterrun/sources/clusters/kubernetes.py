"""A Kubernetes Indexed Job: a pod knows its index, but not the number of pods.

kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode". Many such jobs are a
hundred independent tasks, so several nodes must be asked for. JobSet and Kubeflow's Trainer v2
build on it; the latter sets the rest by PET_ variables.
"""

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place


class IndexedJob(Cluster):
    yields_to_options = True
    markers = ("JOB_COMPLETION_INDEX",)

    def place(self, inputs: Inputs) -> Place:
        """Return the pod's place among ``--nnodes`` pods; without it, the pod is a job of its own."""
        index = inputs.variables.require("JOB_COMPLETION_INDEX")
        nodes = inputs.nnodes
        if nodes is None:
            return Place(yields_to_options=True, warnings=(_runs_alone(index, inputs),))
        if nodes.value == 1:
            return Place(yields_to_options=True)
        return Place(nnodes=nodes, node_rank=index, yields_to_options=True)


def _runs_alone(index: Fact[int], inputs: Inputs) -> str:
    line = inputs.command_line.line("--nnodes", "N", "--master-addr", "JOB-0.SERVICE")
    return (
        f"pod {index.value} of an Indexed Job ({index.origin}) runs alone;"
        f" for one job on N pods, type: {line}"
    )
