"""Volcano: pods of a job with the plugins pytorch, svc and env (volcano-sh/volcano, plugins/).

The plugin pytorch sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE (pods) and RANK (master 0, workers from
1) and asks for svc, which lists the hosts of each kind of task: VC_WORKER_HOSTS and the like. With
svc and env alone, as on ModelArts, VC_TASK_INDEX is the rank where there is one kind of task.
"""

import re
from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place, nowhere
from clusterrun.sources.clusters.variables import Variables, expect_rank

_HOSTS = re.compile(r"VC_(.+)_HOSTS")
_MASTER = "VC_MASTER_HOSTS"
_INDEX = ("VC_TASK_INDEX", "VK_TASK_INDEX")


class Volcano:
    """A pod of a job."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with a list of hosts, or with the index."""
        found = Variables(environ).text(*_INDEX)
        lists = _lists(environ)
        return found.origin if found else next(iter(lists), "")

    def place(self, inputs: Inputs) -> Place:
        """Return the pod's place among the master and the workers."""
        variables = Variables(inputs.variables)
        nodes, lists = variables.number("WORLD_SIZE"), _lists(inputs.variables)
        if nodes is None or variables.text("RANK") is None:
            return _place_by_index(variables, lists)
        rank = variables.expect("RANK")
        expect_rank(rank, nodes)
        hosts = [host for _, names in sorted(lists.items(), key=_masters_first) for host in names]
        known = len(hosts) == nodes.value
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact(tuple(hosts), ", ".join(lists)) if known else Fact((), "default"),
        )


def _masters_first(entry: tuple[str, tuple[str, ...]]) -> tuple[bool, str]:
    return entry[0] != _MASTER, entry[0]


def _lists(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the hosts of each kind of task, by the variable's name."""
    return {
        name: tuple(text.split(","))
        for name, text in sorted(environ.items())
        if _HOSTS.fullmatch(name) and text
    }


def _place_by_index(variables: Variables, lists: Mapping[str, tuple[str, ...]]) -> Place:
    if len(lists) != 1:
        kinds = f"{len(lists)} kinds of tasks ({', '.join(lists)})" if lists else "no list of hosts"
        error = UsageError(
            f"Volcano tells of {kinds}, and of no rank among all",
            "use its plugin pytorch, or say it all: --nnodes, --node-rank, --master-addr",
        )
        return nowhere(error)
    ((origin, hosts),) = lists.items()
    nodes, rank = Fact(len(hosts), origin), variables.expect(*_INDEX)
    expect_rank(rank, nodes)
    return Place(
        nnodes=nodes,
        node_rank=rank,
        hosts=Fact(hosts, origin),
        master_addr=Fact(hosts[0], origin),
    )
