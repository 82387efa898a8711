"""MVAPICH2's mpirun_rsh (MVAPICH2 user guide, "Running on clusters"; accelerate reads the same)."""

from clusterrun.sources.clusters.tasks import TaskLauncher


class Mvapich(TaskLauncher):
    """A task of mpirun_rsh."""

    rank = "MV2_COMM_WORLD_RANK"
    size = "MV2_COMM_WORLD_SIZE"
    local_rank = "MV2_COMM_WORLD_LOCAL_RANK"
    local_size = ("MV2_COMM_WORLD_LOCAL_SIZE",)
