"""Which cluster this process runs under: the first row of a table that finds itself.

To add a scheduler, write a module beside this one (``flux.py`` is a short example), and a row here.
Of a platform that is known by variables alone, a function in ``platforms.py`` is enough. The row has
what must be known without an import: only the modules of detected clusters are imported.
"""

import os
from errno import ENOENT, ENOTDIR
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import Found, Launch, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.suggestions import did_you_mean

if TYPE_CHECKING:
    # Of few clusters.
    from clusterrun.job.clusters.scheduler import Scheduler

NO_CLUSTER = "none"
"""The value of ``--cluster`` for no cluster at all."""


class Cluster(Struct, frozen=True):
    """A scheduler or a platform, such as Slurm or SageMaker."""

    name: str
    """Its value of ``--cluster``; rows may share one."""
    markers: tuple[str, ...]
    """Variables that its processes have, the best known first; a * stands for anything.

    Or a file of its nodes, by its path from / on.
    """
    function: str
    """FILE.FUNCTION beside this one, imported only if a marker is set.

    It gets the variables and the launch, and returns what is found, or None if its marker is another
    cluster's. A variable with a wrong value is a ``UsageError``.
    """
    only_by_name: bool = False
    """Its variables are not its own, so ``--cluster`` has to name it."""
    lenient: bool = False
    """Where options place the node, a variable or a file with a wrong value is not needed."""
    private: tuple[str, ...] = ()
    """Beginnings of variables that place one process, and mean nothing on a host that ssh reaches."""
    job: tuple[str, ...] = ()
    """Variables of its jobs, with their ids: its module has ``SCHEDULER``, the commands of a job."""
    task_launchers: tuple[str, ...] = ()
    """Programs that start its tasks, so they come before clusterrun."""

    @property
    def scheduler(self) -> "Scheduler":
        """The commands of its jobs; for a row with ``job``."""
        found: Scheduler = self._module().SCHEDULER
        return found

    def find(self, variables: Variables, launch: Launch) -> Found | None:
        """Return what the cluster has set; None if this process does not run under it."""
        _, _, name = self.function.partition(".")
        try:
            found: Found | None = getattr(self._module(), name)(variables, launch)
        except UsageError as error:
            if not self.lenient:
                raise
            return Found(yields=True, obstacle=error)
        return found

    def _module(self) -> Any:
        return import_module(f"{__package__}.{self.function.partition('.')[0]}")

    def marker(self, variables: Variables) -> str:
        """Return the first of its markers that is set, or exists; "" if none does."""
        names = (each for marker in self.markers for each in _matching(marker, variables))
        return next((name for name in names if variables.get(name) or _is_there(name)), "")


CLUSTERS = (
    # First those that start this very process. Flux before the others, whose jobs start it: its tasks
    # inherit the variables of its daemons. jsrun also sets Open MPI's variables.
    Cluster(
        "flux",
        ("FLUX_TASK_RANK",),
        "flux.task",
        private=("FLUX_",),
        job=("FLUX_JOB_ID",),
        task_launchers=("flux",),
    ),
    Cluster(
        "lsf",
        ("JSM_NAMESPACE_RANK",),
        "lsf.jsrun",
        private=("LSB_", "LSF_", "LS_JOBPID", "JSM_"),
        job=("LSB_JOBID",),
        task_launchers=("jsrun",),
    ),
    # mpirun before srun: in an allocation it starts its own daemons with srun, and its tasks inherit
    # the daemon's step.
    Cluster(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        "openmpi.task",
        private=("OMPI_", "PMIX_", "PRTE_"),
        task_launchers=("mpirun", "orterun", "prun"),
    ),
    Cluster(
        "mpich",
        ("PMI_RANK",),
        "mpich.mpich",
        private=("PMI_", "HYDRA_", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        task_launchers=("mpiexec",),
    ),
    Cluster("mvapich", ("MV2_COMM_WORLD_RANK",), "mpich.mvapich", private=("MV2_",)),
    Cluster(
        "slurm",
        ("SLURM_STEP_ID", "SLURM_STEPID"),
        "slurm.step",
        private=("SLURM",),
        job=("SLURM_JOB_ID", "SLURM_JOBID"),
        task_launchers=("srun",),
    ),
    # After srun, which sets PALS_ variables on Cray machines.
    Cluster("pals", ("PALS_RANKID",), "mpich.pals", private=("PALS_",), task_launchers=("aprun",)),
    # Platforms with variables of their own, before those known by names that users export, too:
    # HFAI's pods also have RANK and WORLD_SIZE.
    Cluster(
        "hfai",
        ("MARSV2_RANK", "MARSV2_TASK_ID", "MARSV2_NODE_NAME", "HFAI_SIMULATE"),
        "platforms.hfai",
        private=("MARSV2_",),
    ),
    Cluster("pai-dlc", ("NPROC_PER_NODE",), "platforms.pai_dlc"),
    Cluster(
        "volcano",
        ("VC_TASK_INDEX", "VK_TASK_INDEX", "VC_*_HOSTS"),
        "platforms.volcano",
        lenient=True,
        private=("VC_", "VK_"),
    ),
    Cluster("skypilot", ("SKYPILOT_NODE_RANK",), "platforms.skypilot", private=("SKYPILOT_",)),
    Cluster("sagemaker", ("SM_HOSTS",), "platforms.sagemaker", private=("SM_",)),
    Cluster(
        "paddle",
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_NNODES"),
        "platforms.paddle",
    ),
    # AzureML is known by LOCAL_RANK, so it comes after platforms whose pods may have one.
    Cluster("azureml", ("LOCAL_RANK",), "platforms.azureml", lenient=True),
    # A file of hosts: any process of the job has it, wherever it was started.
    Cluster(
        "pbs",
        ("PBS_NODEFILE",),
        "pbs.node_in_nodefile",
        lenient=True,
        private=("PBS_",),
        job=("PBS_JOBID",),
    ),
    # An index without a number of pods.
    Cluster(
        "kubernetes",
        ("JOB_COMPLETION_INDEX",),
        "kubernetes.indexed_job",
        lenient=True,
        private=("KUBERNETES_", "JOB_COMPLETION_"),
        job=("KUBERNETES_SERVICE_HOST",),
    ),
    # Names that belong to no cluster, the clear ones first.
    Cluster("exports", ("NODE_RANK",), "exports.exported_nodes", lenient=True),
    Cluster("exports", ("RANK",), "exports.exported_triple", lenient=True),
    Cluster("pmix", ("PMIX_RANK",), "mpich.pmix"),
    # As it knows least: all processes in an allocation have the same variables.
    Cluster("slurm", ("SLURM_JOB_ID", "SLURM_JOBID"), "slurm.allocation", lenient=True),
    # Ranks without an address: no place, only a warning.
    Cluster("exports", ("RANK", "NODE_RANK"), "exports.exported_ranks"),
    # Pods that have only the names that all platforms share.
    Cluster("pai-dlc", ("WORLD_SIZE",), "platforms.counted_pods", only_by_name=True),
    Cluster("aihc", ("WORLD_SIZE",), "platforms.counted_pods", only_by_name=True),
    Cluster("intel-mpi", ("PMI_RANK",), "mpich.mpich", only_by_name=True),
)
"""In the order of detection, each with the reason for its place; jobs are looked for in the same."""

TASK_LAUNCHERS = tuple(name for cluster in CLUSTERS for name in cluster.task_launchers)
"""Programs that start clusterrun on each node, so they come before it."""

PADDLE_BY_NAME = "paddle"
"""A job whose workers get Paddle's variables, and that options alone may set."""


def detect(asked: Setting[str], variables: Variables, launch: Launch) -> Found:
    """Return what the cluster of this process has set; nothing without one.

    ``asked`` is the value of ``--cluster``, "" if it was not set.

    Raises:
        UsageError: the cluster's variables contradict each other, or it is not the one that is asked.

    """
    if asked.value == NO_CLUSTER:
        return Found(cluster=asked, yields=True)
    if ":" in asked.value:
        # Few sites have a cluster of their own.
        from clusterrun.job.clusters.site_function import find

        return replace(find(asked, variables, launch), cluster=asked)
    for cluster in CLUSTERS:
        is_meant = asked.value == cluster.name or not (asked.value or cluster.only_by_name)
        marker = cluster.marker(variables) if is_meant else ""
        if marker and (found := cluster.find(variables, launch)):
            origin = asked.origin if asked.value else marker
            return replace(found, cluster=Setting(cluster.name, origin))
    if asked.value not in {"", PADDLE_BY_NAME}:
        raise _not_detected(asked)
    return Found(cluster=asked if asked.value else Setting(NO_CLUSTER, "default"), yields=True)


def current_scheduler_job(variables: Variables) -> tuple[Cluster, Setting[str]] | None:
    """Return the scheduler in whose job this process runs, and the job's id; None: there is none."""
    for cluster in CLUSTERS:
        if found := variables.text(*cluster.job):
            return cluster, found
    return None


def _matching(marker: str, variables: Variables) -> list[str]:
    head, star, tail = marker.partition("*")
    if not star:
        return [marker]
    return sorted(name for name in variables if name.startswith(head) and name.endswith(tail))


def _is_there(marker: str) -> bool:
    """Return whether it is a file; one that this user may not see is there, too, and is complained of."""
    if not marker.startswith("/"):
        return False
    try:
        os.lstat(marker)
    except OSError as error:
        return error.errno not in {ENOENT, ENOTDIR}
    return True


def _not_detected(asked: Setting[str]) -> UsageError:
    names = [*dict.fromkeys(cluster.name for cluster in CLUSTERS), NO_CLUSTER]
    if asked.value in names:
        markers = (each for it in CLUSTERS if it.name == asked.value for each in it.markers)
        files = [f", and {each} does not exist" for each in markers if each.startswith("/")]
        return UsageError(
            f"{asked.origin} is {asked.value}, but none of its variables are set{''.join(files)}",
            f"pass them on to this process, or leave {asked.origin} out",
        )
    hint = did_you_mean(asked.value, names) or f"give one of {', '.join(names)}"
    return UsageError(
        f"{asked.origin}: {asked.value!r} is not a cluster that clusterrun knows", hint
    )
