"""AzureML's PyTorch jobs, and other platforms that give each process its RANK and LOCAL_RANK.

learn.microsoft.com, "Distributed GPU training guide": MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK,
LOCAL_RANK, NODE_RANK, with WORLD_SIZE the number of processes. The number of processes per node
follows from AZUREML_NODE_COUNT, from LOCAL_WORLD_SIZE (Ray) or, except on node 0, from the ranks.
"""

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place, no_place
from clusterrun.sources.clusters.tasks import Task, place_of_task
from clusterrun.sources.clusters.variables import Variables


class AzureMl(Cluster):
    yields_to_options = True

    def detect(self, variables: Variables) -> str:
        names = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR")
        is_complete = variables.has_all(*names)
        return names[0] if is_complete and variables["WORLD_SIZE"] != "1" else ""

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        size, rank = variables.require("WORLD_SIZE"), variables.require("RANK")
        local_rank, node_rank = variables.require("LOCAL_RANK"), variables.number("NODE_RANK")
        nodes = variables.number("AZUREML_NODE_COUNT") or inputs.nnodes
        local_size = variables.number("LOCAL_WORLD_SIZE")
        if not local_size and nodes and nodes.value:
            local_size = Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}")
        if not local_size and node_rank and node_rank.value:
            per_node = max(1, (rank.value - local_rank.value) // node_rank.value)
            local_size = Fact(per_node, f"{rank.origin}, {node_rank.origin}")
        if not local_size:
            return no_place(
                f"{size.origin} is {size.value} and {local_rank.origin} is {local_rank.value}: this"
                " is one of several processes, but the number of nodes is unknown",
                f"give the number of nodes:\n  {inputs.command_line.line('--nnodes', 'N')}\n"
                "or start a separate job in each process:\n"
                f"  {inputs.command_line.line('--cluster', 'none')}",
            )
        return place_of_task(Task(rank, size, local_rank, local_size, nodes, node_rank))
