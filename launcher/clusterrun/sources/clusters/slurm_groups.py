"""Slurm's heterogeneous jobs and steps: nodes of several groups, which ask for different things.

A step of several groups has one set of sizes and ranks; but its lists of hosts and of tasks are sorted
by name, while nodes have their ranks by group (Slurm's "Heterogeneous Job Support"; all seen with
22.05).
"""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.job.host_lists import expand_hosts
from clusterrun.sources.clusters.variables import Variables

_SIZE = "SLURM_HET_SIZE"
_HOSTS = "SLURM_JOB_NODELIST_HET_GROUP_"
_NODES = "SLURM_JOB_NUM_NODES_HET_GROUP_"


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


def nodes_of_job(variables: Variables) -> Fact[int]:
    """Return the number of nodes of an allocation; other variables have those of one group only."""
    if not has_groups(variables):
        return variables.require("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    counts = (variables.require(f"{_NODES}{group}").value for group in _groups(variables))
    return Fact(sum(counts), f"{_NODES}*")


def all_groups(variables: Variables) -> tuple[str, ...]:
    """Return the option of srun's that starts tasks on the nodes of all groups; () for no groups."""
    numbers = ",".join(map(str, _groups(variables))) if has_groups(variables) else ""
    return (f"--het-group={numbers}",) if numbers else ()


def _groups(variables: Variables) -> range:
    return range(variables.require(_SIZE).value)


def _all_hosts(variables: Variables) -> Iterator[str]:
    for group in _groups(variables):
        if listed := variables.text(f"{_HOSTS}{group}"):
            yield from expand_hosts(listed).value
