"""What only Kubernetes is asked for."""

from enum import Enum

from msgspec import Struct

from clusterrun.job.declaring import Fact


class ManifestKind(Enum):
    """What the pods of a job belong to."""

    JOB = "job"
    """An Indexed Job with a headless service: on every cluster."""

    JOBSET = "jobset"
    """A JobSet of the controller of that name."""

    TRAINJOB = "trainjob"
    """A TrainJob of Kubeflow's Trainer, with a TrainingRuntime of its own."""

    PYTORCHJOB = "pytorchjob"
    """A PyTorchJob of Kubeflow's Training Operator."""


class Toleration(Struct, frozen=True):
    """A taint of nodes that the pods accept."""

    key: str
    value: str = ""
    """"": any."""
    effect: str = ""
    """"": any."""


class MountedName(Struct, frozen=True):
    """A secret or a claim, and the folder where pods see it."""

    name: str
    folder: str


class PodRequest(Struct, frozen=True):
    """A field has the name of its option."""

    kind: Fact[ManifestKind]
    namespace: Fact[str]
    """"": that of kubectl's context."""
    gpu_resource: Fact[str]
    """What the vendor's device plugin calls a GPU."""
    node_selector: Fact[tuple[tuple[str, str], ...]]
    """Labels that a node must have."""
    tolerations: Fact[tuple[Toleration, ...]]
    secrets: Fact[tuple[MountedName, ...]]
    claims: Fact[tuple[MountedName, ...]]
    """Persistent volume claims."""
    grace: float
    """Seconds that the job may need to end: to save and to stop its workers."""
    token: str
    """The secret by which the job's agents know each other."""
