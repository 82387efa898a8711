"""AzureML's PyTorch jobs, and whoever else gives each process its own RANK and LOCAL_RANK.

learn.microsoft.com, "Distributed GPU training guide": MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK,
LOCAL_RANK, NODE_RANK, with WORLD_SIZE the number of processes. How many of them a node has is told
by AZUREML_NODE_COUNT, by LOCAL_WORLD_SIZE (Ray), or by the ranks themselves but on node 0.
"""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place, nowhere
from clusterrun.sources.clusters.tasks import Task, place_of
from clusterrun.sources.clusters.variables import Variables

_ALL = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR")


class AzureMl:
    """A process of several."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable that only a process has; a world of one needs nobody."""
        is_complete = all(environ.get(name) for name in _ALL)
        return _ALL[0] if is_complete and environ["WORLD_SIZE"] != "1" else ""

    def place(self, inputs: Inputs) -> Place:
        """Return the task's own place, or its node's where each has one."""
        variables = Variables(inputs.variables)
        size, rank = variables.expect("WORLD_SIZE"), variables.expect("RANK")
        local_rank, node_rank = variables.expect("LOCAL_RANK"), variables.number("NODE_RANK")
        nodes = variables.number("AZUREML_NODE_COUNT") or inputs.nnodes
        local_size = _local_size(variables, nodes, size)
        if local_size is None and node_rank and node_rank.value:
            per_node = max(1, (rank.value - local_rank.value) // node_rank.value)
            local_size = Fact(per_node, f"{rank.origin}, {node_rank.origin}")
        if local_size is None:
            error = UsageError(
                f"{size.origin} is {size.value} and {local_rank.origin} {local_rank.value}: this is"
                " one of several processes, and nothing tells how many of them a node has",
                "give the number of nodes:\n"
                f"  {inputs.typed.line('--nnodes', 'N')}\n"
                "or, for a job of its own in each process, ignore these variables:\n"
                f"  {inputs.typed.line('--cluster', 'none')}",
            )
            return nowhere(error)
        return place_of(Task(rank, size, local_rank, local_size, nodes, node_rank))


def _local_size(variables: Variables, nodes: Fact[int] | None, size: Fact[int]) -> Fact[int] | None:
    said = variables.number("LOCAL_WORLD_SIZE")
    if said or not nodes or not nodes.value:
        return said
    return Fact(size.value // nodes.value, f"{size.origin}, {nodes.origin}")
