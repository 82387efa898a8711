"""MPICH and Intel MPI, whose mpiexec is Hydra: what its proxy tells each process.

Nothing tells where task 0 is: on several nodes MASTER_ADDR has to.
"""

from collections.abc import Mapping

from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables


class Mpich:
    """A task that mpiexec started."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the task's rank.

        Whoever else speaks PMI (Slurm, Flux, PALS) sets PMI_RANK, but not the tasks of the node.
        """
        variables = Variables(environ)
        found = variables.text("PMI_RANK")
        return found.origin if found and variables.text("MPI_LOCALNRANKS") else ""

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place, or the task's own where mpiexec started one for each GPU."""
        variables = Variables(inputs.variables)
        return place_of(
            Task(
                rank=variables.expect("PMI_RANK"),
                size=variables.expect("PMI_SIZE"),
                local_rank=variables.expect("MPI_LOCALRANKID"),
                local_size=variables.expect("MPI_LOCALNRANKS"),
            )
        )
