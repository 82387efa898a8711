"""PMIx alone: a task knows its rank, and would have to ask its PMIx server for the rest."""

from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place, no_place


class Pmix(Cluster):
    """A task of a PMIx launcher, without variables of Open MPI."""

    markers = ("PMIX_RANK",)

    def place(self, inputs: Inputs) -> Place:
        rank = inputs.variables.require("PMIX_RANK")
        return no_place(
            f"{rank.origin} is {rank.value}, but the number of tasks is unknown",
            "start clusterrun by Open MPI's mpirun or by srun, or set its place:\n"
            "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
        )
