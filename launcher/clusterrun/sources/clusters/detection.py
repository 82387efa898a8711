"""Which cluster this process runs under: the first of an ordered list that shows itself."""

from typing import NamedTuple

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.options.suggestions import did_you_mean

NO_CLUSTER = "none"
"""What ``--cluster`` calls the absence of any."""


class Known(NamedTuple):
    """One entry of the list."""

    name: str
    """What ``--cluster`` calls it; entries may share one."""
    word: str
    """What its variables begin with, up to the first _; where none does, nothing of it is imported.
    "" where none need be there."""
    file: str
    """The file beside this one that holds it."""
    cluster: str
    """The class in there."""
    by_name: bool = False
    """Only where ``--cluster`` names it: its variables alone don't show it."""

    def load(self) -> Cluster:
        """Return the cluster."""
        from importlib import import_module

        found: Cluster = getattr(import_module(f"{__package__}.{self.file}"), self.cluster)()
        return found


DETECTION = (
    # What started this very process comes first, whatever it stands in; and among these, jsrun
    # sets Open MPI's variables as well.
    Known("lsf", "JSM", "lsf", "JsRun"),
    # Flux and mpirun come before srun: in an allocation they start their own daemons by srun, and
    # tasks inherit the daemon's step.
    Known("flux", "FLUX", "flux", "Flux"),
    Known("openmpi", "OMPI", "openmpi", "OpenMpi"),
    Known("mpich", "MPI", "mpich", "Mpich"),
    Known("mvapich", "MV2", "mvapich", "Mvapich"),
    Known("slurm", "SLURM", "slurm", "SlurmStep"),
    # After srun, which sets PALS_ variables itself on Cray machines.
    Known("pals", "PALS", "pals", "Pals"),
    # Platforms with variables of their own, before those that show themselves by names that
    # anybody may export. HFAI's pods have RANK and WORLD_SIZE, too.
    Known("hfai", "MARSV2", "hfai", "Hfai"),
    Known("hfai", "HFAI", "hfai", "Hfai"),
    Known("pai-dlc", "NPROC", "pai_dlc", "PaiDlc"),
    Known("volcano", "VC", "volcano", "Volcano"),
    Known("volcano", "VK", "volcano", "Volcano"),
    Known("skypilot", "SKYPILOT", "skypilot", "SkyPilot"),
    Known("sagemaker", "SM", "sagemaker", "SageMaker"),
    Known("paddle", "PADDLE", "paddle", "Paddle"),
    # AzureML shows itself by LOCAL_RANK, so after all whose pods may have that from elsewhere.
    Known("azureml", "LOCAL", "azureml", "AzureMl"),
    # A file of hosts, and no word of who was started on which.
    Known("pbs", "PBS", "pbs", "Pbs"),
    # An index without a size.
    Known("kubernetes", "JOB", "kubernetes", "IndexedJob"),
    # Names that are nobody's own: the clear ones first.
    Known("exports", "NNODES", "exports", "NodeExports"),
    Known("exports", "RANK", "exports", "BareTriple"),
    Known("pmix", "PMIX", "pmix", "Pmix"),
    # Last, for it knows least: nothing in an allocation tells one process from another.
    Known("slurm", "SLURM", "slurm_allocation", "SlurmAllocation"),
    # Pods that have but the names which all have.
    Known("pai-dlc", "WORLD", "pai_dlc", "NodeTriple", by_name=True),
    Known("aihc", "WORLD", "pai_dlc", "NodeTriple", by_name=True),
    Known("intel-mpi", "MPI", "mpich", "Mpich", by_name=True),
    # A job for Paddle of which flags say all.
    Known("paddle", "", "paddle", "PaddleByName", by_name=True),
)
"""In the order of asking, each with the reason for its place."""


def detect(asked: Fact[str], inputs: Inputs) -> tuple[Fact[str], Place | None]:
    """Return the name of the cluster, and this process's place as that tells it.

    Args:
        asked: ``--cluster``; its value is "" where that was not given.
        inputs: where to look.

    Raises:
        UsageError: the cluster asked for is unknown or shows no sign of itself, or one of its
            variables is no good.

    """
    if asked.value == NO_CLUSTER:
        return asked, None
    words = {"", *(name.partition("_")[0] for name in inputs.variables)}
    for known in DETECTION:
        is_meant = asked.value == known.name or not (asked.value or known.by_name)
        if is_meant and known.word in words:
            cluster = known.load()
            if sign := cluster.sign(inputs.variables):
                origin = asked.origin if asked.value else sign
                return Fact(known.name, origin), cluster.place(inputs)
    if asked.value:
        raise _not_here(asked)
    return Fact(NO_CLUSTER, "default"), None


def _not_here(asked: Fact[str]) -> UsageError:
    names = [*dict.fromkeys(known.name for known in DETECTION), NO_CLUSTER]
    if asked.value in names:
        return UsageError(
            f"{asked.origin}: no variable of {asked.value} is set here",
            f"pass its variables on to this process, or leave {asked.origin} out",
        )
    hint = did_you_mean(asked.value, names) or f"give one of {', '.join(names)}"
    return UsageError(f"{asked.origin}: {asked.value!r} is not a cluster that we know", hint)
