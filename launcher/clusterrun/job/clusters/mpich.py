"""Tasks of MPICH, Intel MPI, MVAPICH2, PALS and other launchers that use PMIx.

No variable has the host of task 0, so MASTER_ADDR must be set on several nodes; only PALS in a job of
PBS has a nodefile.
"""

from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import DetectionContext, Found, Variables, unplaced
from clusterrun.job.clusters.pbs import read_nodefile
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, task_placement

HYDRA = StartCommands("mpiexec -n {size} clusterrun ...", "mpiexec -ppn 1 clusterrun ...")
PALS = StartCommands(
    "mpiexec -n {size} clusterrun ...", "mpiexec -n {nodes} --ppn 1 clusterrun ..."
)


def mpich(v: Variables, _: DetectionContext) -> Found | None:
    """A task of Hydra, the mpiexec of MPICH and Intel MPI.

    Slurm, Flux and PALS also set PMI_RANK, but not MPI_LOCALNRANKS.
    """
    if not v.get("MPI_LOCALNRANKS"):
        return None
    return task_placement(
        TaskNumbers(
            HYDRA,
            rank=v.require("PMI_RANK"),
            size=v.require("PMI_SIZE"),
            local_rank=v.require("MPI_LOCALRANKID"),
            local_size=v.require("MPI_LOCALNRANKS"),
        )
    )


def mvapich(v: Variables, _: DetectionContext) -> Found:
    """MVAPICH2: its user guide, "Running on clusters"."""
    return task_placement(
        TaskNumbers(
            HYDRA,
            rank=v.require("MV2_COMM_WORLD_RANK"),
            size=v.require("MV2_COMM_WORLD_SIZE"),
            local_rank=v.require("MV2_COMM_WORLD_LOCAL_RANK"),
            local_size=v.require("MV2_COMM_WORLD_LOCAL_SIZE"),
        )
    )


def pals(v: Variables, _: DetectionContext) -> Found:
    """Cray PALS, the mpiexec of HPE machines under PBS, such as Aurora and Polaris."""
    task = TaskNumbers(
        PALS,
        rank=v.require("PALS_RANKID"),
        size=v.require("PMI_SIZE"),
        local_rank=v.require("PALS_LOCAL_RANKID"),
        local_size=v.require("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        node_rank=v.number("PALS_NODEID"),
    )
    file, job = v.text("PBS_NODEFILE"), v.text("PALS_APID")
    hosts = why_none = None
    try:
        hosts = read_nodefile(file) if file else None
    except UsageError as error:
        # A container may not have the file; an option or MASTER_ADDR may have the address.
        why_none = error.message
    found = task_placement(task, hosts=hosts, run_id=job, secret=job)
    return replace(found, no_address_reason=why_none)


def pmix(v: Variables, _: DetectionContext) -> Found | None:
    """A task of another launcher that uses PMIx: only a PMIx server knows the number of tasks."""
    if v.text("SLURM_STEP_ID", "SLURM_STEPID"):
        # srun set PMIX_RANK for a task; this process only inherited its variables.
        return None
    rank = v.require("PMIX_RANK")
    return unplaced(
        f"{rank.origin} is {rank.value}, but the number of tasks is unknown",
        "start clusterrun with Open MPI's mpirun or with srun, or set its rank:\n"
        "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
    )
