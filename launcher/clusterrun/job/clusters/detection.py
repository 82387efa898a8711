"""The table of clusters, and which of them this process runs under.

To add a scheduler, write a module in this package (``flux.py`` is a short example) and a row in
``CLUSTERS``. For a platform that is known by its variables alone, a function in ``platforms.py`` is
enough. Only the module of a detected cluster is imported; the row has what must be known without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import DetectionContext, Found, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.suggestions import did_you_mean

if TYPE_CHECKING:
    from clusterrun.job.clusters.scheduler import Scheduler

NO_CLUSTER = "none"
"""The value of ``--cluster`` that ignores all clusters."""


class Cluster(Struct, frozen=True):
    """A scheduler or a platform, such as Slurm or SageMaker."""

    name: str
    """The value of ``--cluster``; several rows may have the same."""
    markers: tuple[str, ...]
    """Variables that its processes have, the best known first, with * for any text."""
    function: str
    """MODULE.FUNCTION in this package; the module is imported only if a marker is set.

    The function gets the variables and the context. It returns None if the marker belongs to another
    cluster, and raises a ``UsageError`` if a variable has a wrong value.
    """
    only_by_name: bool = False
    """Other platforms have the same variables, so ``--cluster`` must name it."""
    lenient: bool = False
    """A wrong variable or file is an error only if options do not set nodes and ranks."""
    private_prefixes: tuple[str, ...] = ()
    """Prefixes of variables that describe one process; ssh must not pass them to other hosts."""
    job_variables: tuple[str, ...] = ()
    """Variables with the id of a job; the module then has a ``SCHEDULER``."""
    task_launchers: tuple[str, ...] = ()
    """Programs that start its tasks; they come before clusterrun on a command line."""

    @property
    def scheduler(self) -> "Scheduler":
        """The commands of its jobs; only a row with ``job_variables`` has them."""
        found: Scheduler = self._module().SCHEDULER
        return found

    def find(self, variables: Variables, context: DetectionContext) -> Found | None:
        """Return what the cluster sets; None if this process does not run under it."""
        _, _, name = self.function.partition(".")
        try:
            found: Found | None = getattr(self._module(), name)(variables, context)
        except UsageError as error:
            if not self.lenient:
                raise
            return Found(overridable=True, error=error)
        return found

    def _module(self) -> Any:
        return import_module(f"{__package__}.{self.function.partition('.')[0]}")

    def marker(self, variables: Variables) -> str | None:
        """Return the first marker that is set; None if none is."""
        names = (each for marker in self.markers for each in _matching(marker, variables))
        return next((name for name in names if variables.get(name)), None)


CLUSTERS = (
    # Task launchers come first. Flux comes before the others because it may run in their jobs, and its
    # tasks inherit the variables of its daemons. jsrun also sets Open MPI's variables.
    Cluster(
        "flux",
        ("FLUX_TASK_RANK",),
        "flux.task",
        private_prefixes=("FLUX_",),
        job_variables=("FLUX_JOB_ID",),
        task_launchers=("flux",),
    ),
    Cluster(
        "lsf",
        ("JSM_NAMESPACE_RANK",),
        "lsf.jsrun",
        private_prefixes=("LSB_", "LSF_", "LS_JOBPID", "JSM_"),
        job_variables=("LSB_JOBID",),
        task_launchers=("jsrun",),
    ),
    # mpirun comes before srun: in an allocation it starts its daemons with srun, and its tasks inherit
    # the step of their daemon.
    Cluster(
        "openmpi",
        ("OMPI_COMM_WORLD_RANK",),
        "openmpi.task",
        private_prefixes=("OMPI_", "PMIX_", "PRTE_"),
        task_launchers=("mpirun", "orterun", "prun"),
    ),
    Cluster(
        "mpich",
        ("PMI_RANK",),
        "mpich.mpich",
        private_prefixes=("PMI_", "HYDRA_", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        task_launchers=("mpiexec",),
    ),
    Cluster("mvapich", ("MV2_COMM_WORLD_RANK",), "mpich.mvapich", private_prefixes=("MV2_",)),
    Cluster(
        "slurm",
        ("SLURM_STEP_ID", "SLURM_STEPID"),
        "slurm.step",
        private_prefixes=("SLURM",),
        job_variables=("SLURM_JOB_ID", "SLURM_JOBID"),
        task_launchers=("srun",),
    ),
    # PALS comes after srun, which sets PALS_ variables on Cray machines.
    Cluster(
        "pals",
        ("PALS_RANKID",),
        "mpich.pals",
        private_prefixes=("PALS_",),
        task_launchers=("aprun",),
    ),
    # Platforms with variables of their own come before those known by names that users also export:
    # pods of HFAI also have RANK and WORLD_SIZE.
    Cluster(
        "hfai",
        ("MARSV2_RANK", "MARSV2_TASK_ID", "MARSV2_NODE_NAME", "HFAI_SIMULATE"),
        "platforms.hfai",
        private_prefixes=("MARSV2_",),
    ),
    Cluster("pai-dlc", ("NPROC_PER_NODE",), "platforms.pai_dlc", lenient=True),
    Cluster(
        "volcano",
        ("VC_TASK_INDEX", "VK_TASK_INDEX", "VC_*_HOSTS"),
        "platforms.volcano",
        lenient=True,
        private_prefixes=("VC_", "VK_"),
    ),
    Cluster(
        "skypilot", ("SKYPILOT_NODE_RANK",), "platforms.skypilot", private_prefixes=("SKYPILOT_",)
    ),
    Cluster("sagemaker", ("SM_HOSTS",), "platforms.sagemaker", private_prefixes=("SM_",)),
    Cluster(
        "paddle",
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_NNODES"),
        "platforms.paddle",
    ),
    # AzureML is known by LOCAL_RANK, so it comes after platforms whose pods may also have one.
    Cluster("azureml", ("LOCAL_RANK",), "platforms.azureml", lenient=True),
    # Any process of the job has the nodefile, wherever it was started.
    Cluster(
        "pbs",
        ("PBS_NODEFILE",),
        "pbs.node_in_nodefile",
        lenient=True,
        private_prefixes=("PBS_",),
        job_variables=("PBS_JOBID",),
    ),
    # Indexed Jobs have an index, but not the number of pods.
    Cluster(
        "kubernetes",
        ("JOB_COMPLETION_INDEX",),
        "kubernetes.indexed_job",
        lenient=True,
        private_prefixes=("KUBERNETES_", "JOB_COMPLETION_"),
        job_variables=("KUBERNETES_SERVICE_HOST",),
    ),
    # Names that scripts export; NODE_RANK is clear, RANK may count processes.
    Cluster("exports", ("NODE_RANK",), "exports.exported_nodes", lenient=True),
    Cluster("exports", ("RANK",), "exports.exported_triple", lenient=True),
    Cluster("pmix", ("PMIX_RANK",), "mpich.pmix"),
    # An allocation says least: all of its processes have the same variables.
    Cluster("slurm", ("SLURM_JOB_ID", "SLURM_JOBID"), "slurm.allocation", lenient=True),
    # Ranks without an address only cause a warning.
    Cluster("exports", ("RANK", "NODE_RANK"), "exports.exported_ranks"),
    # Pods with only the variables that all platforms share.
    Cluster("pai-dlc", ("WORLD_SIZE",), "platforms.counted_pods", only_by_name=True),
    Cluster("aihc", ("WORLD_SIZE",), "platforms.counted_pods", only_by_name=True),
    Cluster("intel-mpi", ("PMI_RANK",), "mpich.mpich", only_by_name=True),
)
"""In the order of detection. A scheduler's job is searched for in the same order."""

TASK_LAUNCHERS = tuple(name for cluster in CLUSTERS for name in cluster.task_launchers)
"""Programs that start clusterrun on each node, such as srun."""


def detect(asked: Setting[str], variables: Variables, context: DetectionContext) -> Found:
    """Return what the cluster of this process sets; without a cluster, nothing.

    ``asked`` is the value of ``--cluster``, "" if it is not set.

    Raises:
        UsageError: the cluster's variables disagree, or the named cluster is not detected.

    """
    if asked.value == NO_CLUSTER:
        return Found(cluster=asked, overridable=True)
    if ":" in asked.value:
        from clusterrun.job.clusters.site_function import find

        return replace(find(asked, variables, context), cluster=asked)
    for cluster in CLUSTERS:
        if asked.value != cluster.name and (asked.value or cluster.only_by_name):
            continue
        marker = cluster.marker(variables)
        if marker and (found := cluster.find(variables, context)):
            origin = asked.origin if asked.value else marker
            return replace(found, cluster=Setting(cluster.name, origin))
    # For paddle, options alone may set the nodes; workers still get Paddle's variables.
    if asked.value not in {"", "paddle"}:
        raise _not_detected(asked)
    return Found(cluster=asked if asked.value else Setting(NO_CLUSTER, "default"), overridable=True)


def current_scheduler_job(variables: Variables) -> tuple[Cluster, Setting[str]] | None:
    """Return the scheduler whose job this process runs in, and the job's id; None outside of a job."""
    for cluster in CLUSTERS:
        if found := variables.text(*cluster.job_variables):
            return cluster, found
    return None


def _matching(marker: str, variables: Variables) -> list[str]:
    head, star, tail = marker.partition("*")
    if not star:
        return [marker]
    return sorted(name for name in variables if name.startswith(head) and name.endswith(tail))


def _not_detected(asked: Setting[str]) -> UsageError:
    names = [*dict.fromkeys(cluster.name for cluster in CLUSTERS), NO_CLUSTER]
    if asked.value in names:
        return UsageError(
            f"{asked.origin} is {asked.value}, but none of its variables are set",
            f"pass them on to this process, or remove {asked.origin}",
        )
    hint = did_you_mean(asked.value, names) or f"give one of {', '.join(names)}"
    return UsageError(
        f"{asked.origin}: {asked.value!r} is not a cluster that clusterrun knows", hint
    )
