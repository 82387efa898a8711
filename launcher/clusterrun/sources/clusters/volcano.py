"""Volcano: pods of a job with the plugins pytorch, svc and env (volcano-sh/volcano, plugins/).

The plugin pytorch sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE (pods) and RANK (master 0, workers from
1) and requires svc, which lists the hosts of each kind of task: VC_WORKER_HOSTS and others. With
svc and env alone, as on ModelArts, VC_TASK_INDEX is the rank if there is one kind of task.
"""

import re
from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place, no_place
from clusterrun.sources.clusters.variables import Variables, check_rank

_HOSTS = re.compile(r"VC_(.+)_HOSTS")
_MASTER = "VC_MASTER_HOSTS"


class Volcano(Cluster):
    yields_to_options = True
    markers = ("VC_TASK_INDEX", "VK_TASK_INDEX")

    def detect(self, variables: Variables) -> str:
        return super().detect(variables) or next(iter(_host_lists(variables)), "")

    def place(self, inputs: Inputs) -> Place:
        """Return the pod's place among the master and the workers."""
        variables, lists = inputs.variables, _host_lists(inputs.variables)
        if not variables.has_all("WORLD_SIZE", "RANK"):
            return self._place_by_index(variables, lists)
        nodes, rank = variables.nodes_and_rank("WORLD_SIZE", "RANK")
        masters_first = sorted(lists, key=lambda name: (name != _MASTER, name))
        hosts = tuple(host for name in masters_first for host in lists[name])
        is_complete = len(hosts) == nodes.value
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact(hosts, ", ".join(lists)) if is_complete else Fact((), "default"),
        )

    def _place_by_index(self, variables: Variables, lists: Mapping[str, tuple[str, ...]]) -> Place:
        if len(lists) != 1:
            kinds = (
                f"{len(lists)} kinds of tasks ({', '.join(lists)})" if lists else "no list of hosts"
            )
            return no_place(
                f"Volcano has set {kinds}, but no rank among all pods",
                "use its plugin pytorch, or set the place of this node: --nnodes, --node-rank,"
                " --master-addr",
            )
        ((origin, hosts),) = lists.items()
        nodes, rank = Fact(len(hosts), origin), variables.require(*self.markers)
        check_rank(rank, nodes)
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact(hosts, origin),
            master_addr=Fact(hosts[0], origin),
        )


def _host_lists(variables: Variables) -> dict[str, tuple[str, ...]]:
    """Return the hosts of each kind of task, by the variable's name."""
    return {
        name: tuple(text.split(","))
        for name, text in sorted(variables.items())
        if _HOSTS.fullmatch(name) and text
    }
