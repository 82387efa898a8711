"""The options of ``clusterrun submit`` that only Kubernetes has."""

from clusterrun.domain.submissions.pods import ManifestKind, MountedName, Toleration
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import pods

KIND = Option(
    "kind",
    parse=pods.manifest_kind,
    default=ManifestKind.JOB,
    metavar="job|jobset|trainjob|pytorchjob",
    help="Kubernetes: what the pods belong to",
)
NAMESPACE = Option(
    "namespace",
    parse=pods.dns_name,
    default="",
    metavar="NAME",
    help="Kubernetes: the namespace",
    default_words="that of kubectl's context",
)
GPU_RESOURCE = Option(
    "gpu_resource",
    parse=pods.resource,
    default="nvidia.com/gpu",
    metavar="NAME",
    help="Kubernetes: what the vendor's device plugin calls a GPU, such as amd.com/gpu",
)
NODE_SELECTOR: Option[tuple[tuple[str, str], ...]] = Option(
    "node_selector",
    parse=pods.node_selector,
    default=(),
    metavar="KEY=VALUE,...",
    help="Kubernetes: labels that the nodes must have",
    default_words="none",
)
TOLERATIONS: Option[tuple[Toleration, ...]] = Option(
    "tolerations",
    parse=pods.tolerations,
    default=(),
    metavar="KEY[=VALUE][:EFFECT],...",
    help="Kubernetes: taints of nodes that the pods accept",
    default_words="none",
)
SECRETS: Option[tuple[MountedName, ...]] = Option(
    "secrets",
    parse=pods.mounted_names,
    default=(),
    metavar="NAME:/FOLDER,...",
    help="Kubernetes: Secrets whose keys are files in a folder",
    default_words="none",
)
CLAIMS: Option[tuple[MountedName, ...]] = Option(
    "claims",
    parse=pods.mounted_names,
    default=(),
    metavar="NAME:/FOLDER,...",
    help="Kubernetes: PersistentVolumeClaims, and where pods see them",
    default_words="none",
)

POD_ROWS: tuple[Option[object], ...] = (
    *(KIND, NAMESPACE, GPU_RESOURCE, NODE_SELECTOR, TOLERATIONS, SECRETS, CLAIMS),
)
