"""Alibaba's PAI-DLC and Baidu's AIHC: pods whose RANK and WORLD_SIZE count nodes.

DLC: alibabacloud.com/help/en/pai/general-environment-variables (NPROC_PER_NODE is not on the page
of 2024, so an older pod has none). AIHC: cloud.baidu.com/doc/AIHC/s/mm346i20k.
"""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import Variables, expect_rank


class NodeTriple:
    """A pod that is said to be of such a platform, with the three variables that all have."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the number of nodes."""
        return Variables(environ).sign("WORLD_SIZE")

    def place(self, inputs: Inputs) -> Place:
        """Return the node's place; MASTER_ADDR and MASTER_PORT are where every launcher looks."""
        variables = Variables(inputs.variables)
        nodes, rank = variables.expect("WORLD_SIZE"), variables.expect("RANK")
        expect_rank(rank, nodes)
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact((), "default"),
            nproc_per_node=variables.gpus("NPROC_PER_NODE"),
        )


class PaiDlc(NodeTriple):
    """A pod that shows itself by a fourth variable."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return that variable's name.

        Whoever has LOCAL_RANK as well is one process of several; and scripts of many users export
        these names on their own machines, where WORLD_SIZE counts processes: NNODES tells.
        """
        variables = Variables(environ)
        expected = ("NPROC_PER_NODE", "WORLD_SIZE", "RANK", "MASTER_ADDR")
        is_complete = all(variables.text(name) for name in expected)
        if not is_complete or variables.text("LOCAL_RANK"):
            return ""
        return "" if variables.differ("NNODES", "WORLD_SIZE") else expected[0]
