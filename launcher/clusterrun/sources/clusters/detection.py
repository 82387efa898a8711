"""Which cluster this process runs under: the first of an ordered list that detects itself."""

from typing import NamedTuple

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.suggestions import did_you_mean
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place

NO_CLUSTER = "none"
"""The value of ``--cluster`` for no cluster at all."""


class Entry(NamedTuple):
    """One entry of the list."""

    name: str
    """Its value of ``--cluster``; entries may share one."""
    prefix: str
    """Start of its variables, up to the first _: its file is imported only if one is set.

    "" if no variable is needed.
    """
    cluster: str
    """The file beside this one, and the class in it."""
    only_by_name: bool = False
    """Its variables are not its own, so ``--cluster`` has to name it."""
    private: tuple[str, ...] = ()
    """Beginnings of variables that place one process, and mean nothing on a host that ssh reaches."""

    def load(self) -> Cluster:
        from importlib import import_module

        file, _, name = self.cluster.partition(".")
        loaded: Cluster = getattr(import_module(f"{__package__}.{file}"), name)()
        return loaded


DETECTION = (
    # First those that start this very process. jsrun also sets Open MPI's variables.
    Entry("lsf", "JSM", "lsf.JsRun", private=("LSB_", "LSF_", "LS_JOBPID", "JSM_")),
    # Flux and mpirun before srun: in an allocation they start their own daemons with srun, and
    # their tasks inherit the daemon's step.
    Entry("flux", "FLUX", "flux.Flux", private=("FLUX_",)),
    Entry("openmpi", "OMPI", "mpi.OpenMpi", private=("OMPI_", "PMIX_", "PRTE_")),
    Entry(
        "mpich",
        "MPI",
        "mpi.Mpich",
        private=("PMI_", "HYDRA_", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    ),
    Entry("mvapich", "MV2", "mpi.Mvapich", private=("MV2_",)),
    Entry("slurm", "SLURM", "slurm.SlurmStep", private=("SLURM",)),
    # After srun, which sets PALS_ variables on Cray machines.
    Entry("pals", "PALS", "mpi.Pals", private=("PALS_",)),
    # Platforms with variables of their own, before those known by names that users export, too:
    # HFAI's pods also have RANK and WORLD_SIZE.
    Entry("hfai", "MARSV2", "hfai.Hfai", private=("MARSV2_",)),
    Entry("hfai", "HFAI", "hfai.Hfai"),
    Entry("pai-dlc", "NPROC", "pai_dlc.PaiDlc"),
    Entry("volcano", "VC", "volcano.Volcano", private=("VC_", "VK_")),
    Entry("volcano", "VK", "volcano.Volcano"),
    Entry("skypilot", "SKYPILOT", "skypilot.SkyPilot", private=("SKYPILOT_",)),
    Entry("sagemaker", "SM", "sagemaker.SageMaker", private=("SM_",)),
    Entry("paddle", "PADDLE", "paddle.Paddle"),
    # AzureML is known by LOCAL_RANK, so it comes after platforms whose pods may have one.
    Entry("azureml", "LOCAL", "azureml.AzureMl"),
    # A file of hosts: any process of the job has it, wherever it was started.
    Entry("pbs", "PBS", "pbs.Pbs", private=("PBS_",)),
    # An index without a number of pods.
    Entry("kubernetes", "JOB", "kubernetes.IndexedJob", private=("KUBERNETES_", "JOB_COMPLETION_")),
    # Names that belong to no cluster, the clear ones first.
    Entry("exports", "NNODES", "exports.NodeExports"),
    Entry("exports", "RANK", "exports.BareTriple"),
    Entry("pmix", "PMIX", "mpi.Pmix"),
    # Last, as it knows least: all processes in an allocation have the same variables.
    Entry("slurm", "SLURM", "slurm_allocation.SlurmAllocation"),
    # Pods that have only the names that all platforms share.
    Entry("pai-dlc", "WORLD", "pai_dlc.NodeTriple", only_by_name=True),
    Entry("aihc", "WORLD", "pai_dlc.NodeTriple", only_by_name=True),
    Entry("intel-mpi", "MPI", "mpi.Mpich", only_by_name=True),
    # A job for Paddle that is set by options alone.
    Entry("paddle", "", "paddle.PaddleByName", only_by_name=True),
)
"""In the order of detection, each with the reason for its place."""


def detect(asked: Fact[str], inputs: Inputs) -> tuple[Fact[str], Place | None]:
    """Return the name of the cluster, and the place of this process in its job.

    ``asked`` is the value of ``--cluster``, "" if it was not set.
    """
    if asked.value == NO_CLUSTER:
        return asked, None
    prefixes = {"", *(name.partition("_")[0] for name in inputs.variables)}
    for entry in DETECTION:
        is_meant = asked.value == entry.name or not (asked.value or entry.only_by_name)
        if is_meant and entry.prefix in prefixes:
            cluster = entry.load()
            if marker := cluster.detect(inputs.variables):
                origin = asked.origin if asked.value else marker
                return Fact(entry.name, origin), _place(cluster, inputs)
    if asked.value:
        raise _not_detected(asked)
    return Fact(NO_CLUSTER, "default"), None


def _place(cluster: Cluster, inputs: Inputs) -> Place:
    try:
        return cluster.place(inputs)
    except UsageError as error:
        if not cluster.yields_to_options:
            raise
        # Where options place the node, the file or the variable is not needed.
        return Place(yields_to_options=True, obstacle=error)


def _not_detected(asked: Fact[str]) -> UsageError:
    names = [*dict.fromkeys(entry.name for entry in DETECTION), NO_CLUSTER]
    if asked.value in names:
        return UsageError(
            f"{asked.origin} is {asked.value}, but none of its variables are set",
            f"pass them on to this process, or leave {asked.origin} out",
        )
    hint = did_you_mean(asked.value, names) or f"give one of {', '.join(names)}"
    return UsageError(f"{asked.origin}: unknown cluster {asked.value!r}", hint)
