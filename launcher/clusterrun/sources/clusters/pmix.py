"""PMIx alone: a task knows its rank, and asks its server for the rest, which we don't speak with."""

from collections.abc import Mapping

from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place, nowhere
from clusterrun.sources.clusters.variables import Variables


class Pmix:
    """A task that a launcher of PMIx's started, and that Open MPI's variables say nothing of."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("PMIX_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return no place: it can't be known."""
        rank = Variables(inputs.variables).expect("PMIX_RANK")
        error = UsageError(
            f"{rank.origin} is {rank.value}, and nothing tells how many tasks there are",
            "start it by Open MPI's mpirun or by srun, or say it all:\n"
            "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
        )
        return nowhere(error)
