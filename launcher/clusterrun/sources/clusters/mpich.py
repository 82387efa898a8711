"""MPICH and Intel MPI, whose mpiexec is Hydra: what its proxy sets for each process.

No variable has the host of task 0: on several nodes MASTER_ADDR has to be set.
"""

from clusterrun.sources.clusters.tasks import TaskLauncher
from clusterrun.sources.clusters.variables import Variables


class Mpich(TaskLauncher):
    """A task of mpiexec."""

    rank = "PMI_RANK"
    size = "PMI_SIZE"
    local_rank = "MPI_LOCALRANKID"
    local_size = ("MPI_LOCALNRANKS",)

    def detect(self, variables: Variables) -> str:
        """Return PMI_RANK, which Slurm, Flux and PALS set as well, but without MPI_LOCALNRANKS."""
        has_both = variables.has_all("PMI_RANK", "MPI_LOCALNRANKS")
        return "PMI_RANK" if has_both else ""
