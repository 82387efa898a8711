"""A Kubernetes Indexed Job: a pod knows its index, and nothing how many there are.

kubernetes.io/docs/concepts/workloads/controllers/job, "Completion mode": many such jobs are a
hundred tasks of which none needs another, so several nodes have to be asked for. JobSet and
Kubeflow's Trainer v2 build on it; the latter says the rest by PET_ variables.
"""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import Variables


class IndexedJob:
    """A pod of an Indexed Job."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the pod's index."""
        return Variables(environ).sign("JOB_COMPLETION_INDEX")

    def place(self, inputs: Inputs) -> Place:
        """Return the pod's place among as many as ``--nnodes`` says, else this one pod."""
        index = Variables(inputs.variables).expect("JOB_COMPLETION_INDEX")
        nodes = inputs.nnodes
        if nodes is None or nodes.value == 1:
            return Place(
                nnodes=Fact(1, "default"),
                node_rank=Fact(None, "default"),
                hosts=Fact((), "default"),
                tentative=True,
                warnings=() if nodes else (_alone(index, inputs),),
            )
        return Place(
            nnodes=nodes,
            node_rank=index,
            hosts=Fact((), "default"),
            tentative=True,
        )


def _alone(index: Fact[int], inputs: Inputs) -> str:
    line = inputs.typed.line("--nnodes", "N", "--master-addr", "JOB-0.SERVICE")
    return f"pod {index.value} of an Indexed Job ({index.origin}) runs alone; N pods as one job: {line}"
