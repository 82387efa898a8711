"""Variables that scripts for torchrun export under the names of its flags, on an unknown platform."""

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import Variables


class NodeExports(Cluster):
    """A node with NODE_RANK, NNODES and MASTER_ADDR, which can only count nodes."""

    yields_to_options = True

    def detect(self, variables: Variables) -> str:
        names = ("NODE_RANK", "NNODES", "MASTER_ADDR")
        return names[0] if variables.has_all(*names) else ""

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        nodes, rank = variables.nodes_and_rank("NNODES", "NODE_RANK")
        return Place(
            nnodes=nodes,
            node_rank=rank,
            nproc_per_node=variables.gpus("NPROC_PER_NODE"),
            yields_to_options=True,
        )


class BareTriple(Cluster):
    """RANK, WORLD_SIZE and MASTER_ADDR, which count nodes on some platforms, processes on others.

    Never taken for a job on one node: then each pod would train alone and report success.
    """

    yields_to_options = True

    def detect(self, variables: Variables) -> str:
        """Return RANK if the world has several members and no LOCAL_RANK places this process."""
        is_alone = variables.get("WORLD_SIZE", "") in {"", "0", "1"}
        is_complete = variables.has_all("RANK", "MASTER_ADDR")
        return "RANK" if is_complete and not is_alone and not variables.get("LOCAL_RANK") else ""

    def place(self, inputs: Inputs) -> Place:
        """Return a place that is right with one worker per node, or if --nnodes is WORLD_SIZE."""
        nodes, rank = inputs.variables.nodes_and_rank("WORLD_SIZE", "RANK")
        counts_nodes = inputs.nnodes is not None and inputs.nnodes.value == nodes.value
        hint = Fact("", "default") if counts_nodes else Fact(_both_lines(inputs), rank.origin)
        return Place(nnodes=nodes, node_rank=rank, unclear=hint, yields_to_options=True)


def _both_lines(inputs: Inputs) -> str:
    by_hand = ("--nnodes", "$WORLD_SIZE", "--node-rank", "$RANK", "--nproc-per-node", "1")
    processes = inputs.command_line.line(*by_hand)
    # The shell fills them in, so that the same line is right for every process.
    for variable in ("$WORLD_SIZE", "$RANK"):
        processes = processes.replace(f"'{variable}'", variable)
    return (
        f"if RANK counts nodes:\n  {inputs.command_line.line('--cluster', 'pai-dlc')}\n"
        f"if it counts processes, each with one worker:\n  {processes}"
    )
