"""Options: how many workers, and where."""

from clusterrun.domain.job import WorkerCount
from clusterrun.sources.options.option import Option, switch_option
from clusterrun.sources.options.values import hosts, numbers, paths

NNODES = Option(
    "nnodes",
    parse=numbers.node_count,
    default=1,
    metavar="N|MIN:MAX",
    help="Number of nodes; with MIN:MAX, from MIN to MAX, as many as join in time",
)
NODE_RANK: Option[int | None] = Option(
    "node_rank",
    parse=numbers.node_rank,
    default=None,
    metavar="R",
    help="The rank of this node, from 0",
    default_words=(
        "the cluster's; else 0 on the node that has the given address, others in the order of "
        "joining"
    ),
)
NPROC_PER_NODE: Option[int | WorkerCount] = Option(
    "nproc_per_node",
    parse=numbers.worker_count,
    default=WorkerCount.PER_GPU,
    metavar="N|auto|gpu|cpu",
    help="Number of workers on each node; auto: one per GPU, or one per CPU if there are no GPUs",
    default_words="one per visible GPU, or one",
)
HOSTS: Option[tuple[str, ...]] = Option(
    "hosts",
    parse=hosts.hosts,
    default=(),
    metavar="HOST,...",
    help=(
        "The nodes in the order of their ranks, such as a,b[1-3]; each node finds itself in the "
        "list"
    ),
    aliases=("cluster_node_ips",),
    default_words="the cluster's",
)
HOSTFILE = Option(
    "hostfile",
    parse=paths.path,
    default="",
    metavar="FILE",
    help="The same from a file, with HOST, HOST slots=N or HOST:N on each line",
    default_words="none",
)
CLUSTER = Option(
    "cluster",
    parse=str,  # checked by sources.clusters.detection
    default="",
    metavar="NAME|none",
    help="The scheduler whose variables give the nodes and ranks; none: ignore all of them",
    default_words="the one whose variables are set",
    common_in_scripts=True,
)
USE_PADDLECLOUD = switch_option(
    "use_paddlecloud",
    help="The same as --cluster paddle",
)
DEVICES: Option[tuple[str, ...]] = Option(
    "devices",
    parse=hosts.devices,
    default=(),
    metavar="0,2,5-7",
    help="The GPUs for the workers, in this order, by number or UUID",
    aliases=("selected_gpus",),
    default_words="all visible GPUs",
)
