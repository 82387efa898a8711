"""Alibaba's PAI-DLC and Baidu's AIHC: pods whose RANK and WORLD_SIZE count nodes.

DLC: alibabacloud.com/help/en/pai/general-environment-variables (NPROC_PER_NODE is not on the page
of 2024, so an older pod has none). AIHC: cloud.baidu.com/doc/AIHC/s/mm346i20k.
"""

from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import Variables


class NodeTriple(Cluster):
    """A pod that only ``--cluster`` identifies: it has the three variables that all platforms set."""

    markers = ("WORLD_SIZE",)

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        nodes, rank = variables.nodes_and_rank("WORLD_SIZE", "RANK")
        return Place(nnodes=nodes, node_rank=rank, nproc_per_node=variables.gpus("NPROC_PER_NODE"))


class PaiDlc(NodeTriple):
    """A pod that a fourth variable identifies."""

    def detect(self, variables: Variables) -> str:
        """Return NPROC_PER_NODE, if the other variables count nodes.

        A process with LOCAL_RANK is one of several on its node. On other machines many users export
        the same names, and there WORLD_SIZE counts processes: then it differs from NNODES.
        """
        names = ("NPROC_PER_NODE", "WORLD_SIZE", "RANK", "MASTER_ADDR")
        counts_processes = variables.differ("NNODES", "WORLD_SIZE")
        is_pod = variables.has_all(*names) and not variables.text("LOCAL_RANK")
        return names[0] if is_pod and not counts_processes else ""
