"""Rows of the table of options for lines of paddle.distributed.launch that nothing else has."""

from clusterrun.sources.options import host_values as values
from clusterrun.sources.options.option import Group, Kind, Option
from clusterrun.sources.options.values import switch

USUAL_BASE_PORT = 6170
"""Paddle's own (python/paddle/distributed/cloud_utils.py)."""

BASE_PORT = Option(
    "base_port",
    parse=values.base_port,
    default=USUAL_BASE_PORT,
    metavar="PORT",
    help="With --cluster paddle, the first of the ports that a node's workers have in PADDLE_ variables",
    group=Group.MEETING,
    aliases=("started_port",),
)
USE_PADDLECLOUD = Option(
    "use_paddlecloud",
    parse=switch,
    default=False,
    metavar="",
    help="As --cluster paddle",
    group=Group.WORKERS,
    kind=Kind.FLAG,
)
