"""Options: how many workers, and where."""

from clusterrun.domain.job import WorkerCount
from clusterrun.sources.options.option import Group, Option, switch_option
from clusterrun.sources.options.values import choices, hosts, numbers, paths

NNODES = Option(
    "nnodes",
    parse=numbers.node_count,
    default=1,
    metavar="N|MIN:MAX",
    help="The number of nodes; of MIN:MAX, as many as have come at the last call",
    group=Group.WORKERS,
    is_derived=True,
)
NODE_RANK: Option[int | None] = Option(
    "node_rank",
    parse=numbers.node_rank,
    default=None,
    metavar="R",
    help="The rank of this node, from 0",
    group=Group.WORKERS,
    default_words=(
        "what the cluster says, else 0 for the node that has the address given, the others by order"
        " of joining"
    ),
    is_derived=True,
)
NPROC_PER_NODE: Option[int | WorkerCount] = Option(
    "nproc_per_node",
    parse=numbers.worker_count,
    default=WorkerCount.PER_GPU,
    metavar="N|auto|gpu|cpu",
    help="The number of workers on each node; auto means one per GPU, else one per CPU",
    group=Group.WORKERS,
    default_words="one per visible GPU, else one",
    is_derived=True,
)
HOSTS: Option[tuple[str, ...]] = Option(
    "hosts",
    parse=hosts.hosts,
    default=(),
    metavar="HOST,...",
    help="The nodes by rank, such as a,b[1-3]; each finds its own there",
    group=Group.WORKERS,
    aliases=("cluster_node_ips",),
    default_words="the cluster's",
    is_derived=True,
)
HOSTFILE = Option(
    "hostfile",
    parse=paths.path,
    default="",
    metavar="FILE",
    help="The same from a file with HOST, HOST slots=N or HOST:N on each line",
    group=Group.WORKERS,
    default_words="none",
)
CLUSTER = Option(
    "cluster",
    parse=choices.cluster,
    default="",
    metavar="NAME|none",
    help="The scheduler whose variables tell this process's place in the job; none reads nobody's",
    group=Group.WORKERS,
    default_words="the one whose variables are there",
    common_in_scripts=True,
    is_derived=True,
)
USE_PADDLECLOUD = switch_option(
    "use_paddlecloud",
    help="As --cluster paddle",
    group=Group.WORKERS,
)
DEVICES: Option[tuple[str, ...]] = Option(
    "devices",
    parse=hosts.devices,
    default=(),
    metavar="0,2,5-7",
    help="The GPUs for the workers, in their order",
    group=Group.WORKERS,
    aliases=("selected_gpus",),
    default_words="all visible ones",
)
