"""Variables that scripts for torchrun export under the names of its flags, on no platform known."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import Variables, expect_rank


class NodeExports:
    """A node with NODE_RANK, NNODES and MASTER_ADDR, which nobody takes for a process's."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the node's rank, where all three are set."""
        expected = ("NODE_RANK", "NNODES", "MASTER_ADDR")
        return expected[0] if all(environ.get(name) for name in expected) else ""

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place; flags may say otherwise."""
        variables = Variables(inputs.variables)
        nodes, rank = variables.expect("NNODES"), variables.expect("NODE_RANK")
        expect_rank(rank, nodes)
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact((), "default"),
            nproc_per_node=variables.gpus("NPROC_PER_NODE"),
            tentative=True,
        )


class BareTriple:
    """RANK, WORLD_SIZE and MASTER_ADDR, which count nodes here and processes there.

    Never taken for one node: pods of which each trains alone and reports success are the worst end.
    """

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the rank, where there is a world of several."""
        is_complete = environ.get("RANK") and environ.get("MASTER_ADDR")
        is_alone = environ.get("WORLD_SIZE", "") in {"", "0", "1"}
        return "RANK" if is_complete and not is_alone and not environ.get("LOCAL_RANK") else ""

    def place(self, inputs: Inputs) -> Place:
        """Return the place that is right for one worker on each node, or where flags agree."""
        variables = Variables(inputs.variables)
        nodes, rank = variables.expect("WORLD_SIZE"), variables.expect("RANK")
        expect_rank(rank, nodes)
        count_nodes = inputs.nnodes is not None and inputs.nnodes.value == nodes.value
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact((), "default"),
            unclear=Fact("", "default") if count_nodes else Fact(_choice(inputs), rank.origin),
            tentative=True,
        )


def _choice(inputs: Inputs) -> str:
    by_hand = ("--nnodes", "$WORLD_SIZE", "--node-rank", "$RANK", "--nproc-per-node", "1")
    processes = inputs.typed.line(*by_hand)
    # For the shell to fill in, so that one line is right in all of them.
    for variable in ("$WORLD_SIZE", "$RANK"):
        processes = processes.replace(f"'{variable}'", variable)
    return (
        f"if RANK counts nodes:\n  {inputs.typed.line('--cluster', 'pai-dlc')}\n"
        f"if it counts processes, one worker in each:\n  {processes}"
    )
