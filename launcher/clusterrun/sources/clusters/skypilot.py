"""SkyPilot: one process per node (docs.skypilot.co, "SkyPilot environment variables")."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import WITHOUT_CLUSTER, Variables, expect_rank


class SkyPilot:
    """A node that runs the task's ``run`` commands."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the node's rank."""
        return Variables(environ).sign("SKYPILOT_NODE_RANK")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place; the first address is the head's."""
        variables = Variables(inputs.variables)
        said = variables.text("SKYPILOT_NODE_IPS")
        hosts = Fact(tuple(said.value.split()) if said else (), "SKYPILOT_NODE_IPS")
        # Older versions tell the number by the list alone.
        nodes = variables.number("SKYPILOT_NUM_NODES") or Fact(len(hosts.value), hosts.origin)
        rank = variables.expect("SKYPILOT_NODE_RANK")
        expect_rank(rank, nodes)
        if len(hosts.value) != nodes.value:
            raise UsageError(
                f"{nodes.origin} is {nodes.value}, and {hosts.origin} lists {len(hosts.value)}:"
                " they don't fit together",
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
