"""Rows of the table of options for which hosts a job has, and which of their devices."""

from clusterrun.sources.options import host_values as values
from clusterrun.sources.options.option import Group, Option
from clusterrun.sources.options.values import path

HOSTS: Option[tuple[str, ...]] = Option(
    "hosts",
    parse=values.hosts,
    default=(),
    metavar="HOST,...",
    help="The nodes by rank, such as a,b[1-3]; each finds its own there",
    group=Group.WORKERS,
    aliases=("cluster_node_ips",),
    otherwise="the cluster's",
)
HOSTFILE = Option(
    "hostfile",
    parse=path,
    default="",
    metavar="FILE",
    help="The same from a file with HOST, HOST slots=N or HOST:N on each line",
    group=Group.WORKERS,
    otherwise="none",
)
DEVICES: Option[tuple[str, ...]] = Option(
    "devices",
    parse=values.devices,
    default=(),
    metavar="0,2,5-7",
    help="The GPUs for the workers, in their order",
    group=Group.WORKERS,
    aliases=("selected_gpus",),
    otherwise="all visible ones",
)
