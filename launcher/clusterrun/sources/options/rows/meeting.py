"""Options: how nodes find each other."""

from clusterrun.sources.options.option import Option
from clusterrun.sources.options.values import hosts, numbers

USUAL_BASE_PORT = 6170
"""Paddle's own (python/paddle/distributed/cloud_utils.py)."""

MASTER_ADDR: Option[str | None] = Option(
    "master_addr",
    parse=hosts.address,
    default=None,
    metavar="HOST",
    help="The address where rank 0 listens, MASTER_ADDR of the workers",
    default_words="127.0.0.1 on one node, else the cluster's",
    common_in_scripts=True,
)
MASTER_PORT = Option(
    "master_port",
    parse=numbers.port,
    default=None,
    metavar="PORT",
    help="The port where rank 0 listens, MASTER_PORT of the workers",
    default_words="on one node a free port for each attempt, else the cluster's, or 29500",
    common_in_scripts=True,
)
LOCAL_ADDR: Option[str | None] = Option(
    "local_addr",
    parse=hosts.address,
    default=None,
    metavar="HOST",
    help="This node's own address; if the nodes meet there, this is node 0",
    aliases=("node_ip",),
    default_words="found by clusterrun",
)
BASE_PORT = Option(
    "base_port",
    parse=numbers.base_port,
    default=USUAL_BASE_PORT,
    metavar="PORT",
    help="With --cluster paddle, the first port of a node's workers in PADDLE_ variables",
    aliases=("started_port",),
)
RDZV_ENDPOINT: Option[str | None] = Option(
    "rdzv_endpoint",
    parse=hosts.endpoint,
    default=None,
    metavar="HOST[:PORT]",
    help="Where the nodes meet, for the whole job; MASTER_PORT is then another port",
    default_words="at --master-addr and --master-port",
)
