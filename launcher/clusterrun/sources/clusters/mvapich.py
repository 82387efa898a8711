"""MVAPICH2's mpirun_rsh (MVAPICH2 user guide, "Running on clusters"; accelerate reads the same)."""

from collections.abc import Mapping

from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables


class Mvapich:
    """A task that mpirun_rsh started."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank."""
        return Variables(environ).sign("MV2_COMM_WORLD_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where there is one for each GPU."""
        variables = Variables(inputs.variables)
        return place_of(
            Task(
                rank=variables.expect("MV2_COMM_WORLD_RANK"),
                size=variables.expect("MV2_COMM_WORLD_SIZE"),
                local_rank=variables.expect("MV2_COMM_WORLD_LOCAL_RANK"),
                local_size=variables.expect("MV2_COMM_WORLD_LOCAL_SIZE"),
            )
        )
