"""SkyPilot: one process per node (docs.skypilot.co, "SkyPilot environment variables")."""

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, check_rank


class SkyPilot(Cluster):
    markers = ("SKYPILOT_NODE_RANK",)

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        hosts = Fact(
            tuple(inputs.variables.get("SKYPILOT_NODE_IPS", "").split()), "SKYPILOT_NODE_IPS"
        )
        # Older versions set the list alone.
        nodes = variables.number("SKYPILOT_NUM_NODES") or Fact(len(hosts.value), hosts.origin)
        rank = variables.require("SKYPILOT_NODE_RANK")
        check_rank(rank, nodes)
        if len(hosts.value) != nodes.value:
            raise UsageError(
                f"{nodes.origin} is {nodes.value}, but {hosts.origin} lists {len(hosts.value)}",
                WITHOUT_CLUSTER,
            )
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=hosts,
            nproc_per_node=variables.gpus("SKYPILOT_NUM_GPUS_PER_NODE"),
            master_addr=Fact(hosts.value[0], hosts.origin),
            run_id=variables.text("SKYPILOT_TASK_ID"),
        )
