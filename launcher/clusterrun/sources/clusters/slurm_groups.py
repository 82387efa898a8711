"""Slurm's heterogeneous steps: nodes of several groups, which ask for different things.

A step of several groups has one set of sizes and ranks; but its lists of hosts and of tasks are sorted
by name, while nodes have their ranks by group (Slurm's "Heterogeneous Job Support"; all seen with
22.05).
"""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.hosts.host_lists import expand_hosts

_SIZE = "SLURM_HET_SIZE"
_HOSTS = "SLURM_JOB_NODELIST_HET_GROUP_"


def has_groups(variables: Variables) -> bool:
    """Return whether the job has several groups."""
    return bool(variables.get(_SIZE))


def hosts_by_group(variables: Variables, listed: Fact[tuple[str, ...]]) -> Fact[tuple[str, ...]]:
    """Return the hosts of a step in the order of their ranks.

    Unchanged for a job without groups, and where two groups of the step share a host: its place in
    the list is not known then.
    """
    if not has_groups(variables):
        return listed
    step = set(listed.value)
    hosts = tuple(host for host in _all_hosts(variables) if host in step)
    if sorted(hosts) != sorted(listed.value):
        return listed
    return Fact(hosts, f"{listed.origin}, {_HOSTS}*")


def _all_hosts(variables: Variables) -> Iterator[str]:
    for group in range(variables.require(_SIZE).value):
        if listed := variables.text(f"{_HOSTS}{group}"):
            yield from expand_hosts(listed).value
