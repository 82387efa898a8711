"""MPICH, Intel MPI, MVAPICH2, PALS and others by PMIx: variables of a task, and nothing else.

Without a nodefile no variable has the host of task 0: on several nodes MASTER_ADDR has to be set.
"""

from clusterrun.job.clusters.found import Found, Launch, Variables, unplaced
from clusterrun.job.clusters.pbs import read_nodefile
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, place_of

HYDRA = StartCommands("mpiexec -n {size} clusterrun ...", "mpiexec -ppn 1 clusterrun ...")
PALS = StartCommands(
    "mpiexec -n {size} clusterrun ...", "mpiexec -n {nodes} --ppn 1 clusterrun ..."
)


def mpich(v: Variables, _: Launch) -> Found | None:
    """MPICH and Intel MPI, whose mpiexec is Hydra: what its proxy sets for each process.

    Slurm, Flux and PALS set PMI_RANK as well, but not MPI_LOCALNRANKS.
    """
    if not v.get("MPI_LOCALNRANKS"):
        return None
    return place_of(
        TaskNumbers(
            HYDRA,
            rank=v.require("PMI_RANK"),
            size=v.require("PMI_SIZE"),
            local_rank=v.require("MPI_LOCALRANKID"),
            local_size=v.require("MPI_LOCALNRANKS"),
        )
    )


def mvapich(v: Variables, _: Launch) -> Found:
    """MVAPICH2: its user guide, "Running on clusters"."""
    return place_of(
        TaskNumbers(
            HYDRA,
            rank=v.require("MV2_COMM_WORLD_RANK"),
            size=v.require("MV2_COMM_WORLD_SIZE"),
            local_rank=v.require("MV2_COMM_WORLD_LOCAL_RANK"),
            local_size=v.require("MV2_COMM_WORLD_LOCAL_SIZE"),
        )
    )


def pals(v: Variables, _: Launch) -> Found:
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
    hosts = read_nodefile(file) if file else None
    return place_of(task, hosts=hosts, run_id=job, secret=job)


def pmix(v: Variables, _: Launch) -> Found | None:
    """A task of another launcher that builds on PMIx: it would have to ask a server for its place."""
    if v.text("SLURM_STEP_ID", "SLURM_STEPID"):
        # srun set it for a task: this process is in a shell that is one, or inherited its variables.
        return None
    rank = v.require("PMIX_RANK")
    return unplaced(
        f"{rank.origin} is {rank.value}, but the number of tasks is unknown",
        "start clusterrun by Open MPI's mpirun or by srun, or set its place:\n"
        "  clusterrun --nnodes N --node-rank $PMIX_RANK --master-addr HOST ...",
    )
