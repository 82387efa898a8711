"""High-Flyer's HAI platform: pods of a task (HFAiLab/hai-platform f9119b1).

RANK and WORLD_SIZE count machines there (base_task.py, single_task_impl.py). MASTER_ADDR is
"localhost" on the first and a name elsewhere, until a script has waited for the name and writes the
address into MASTER_IP and MASTER_ADDR (pod spec, waiting_for_master.sh): so MASTER_IP comes first.
"""

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Cluster, Inputs, Place
from clusterrun.sources.clusters.variables import Variables

_HALVES = ("0", "1")
"""Values of MARSV2_ASSIGNED_NUMA: the task shares its machines, and has this half of each."""


class Hfai(Cluster):
    markers = ("MARSV2_RANK", "MARSV2_TASK_ID", "MARSV2_NODE_NAME")

    def detect(self, variables: Variables) -> str:
        """Return a variable of a pod's, or HFAI_SIMULATE: 1 under ``hfai python``, on one machine."""
        is_simulated = variables.get("HFAI_SIMULATE") == "1"
        return super().detect(variables) or ("HFAI_SIMULATE" if is_simulated else "")

    def place(self, inputs: Inputs) -> Place:
        variables = inputs.variables
        nodes, rank = variables.nodes_and_rank("WORLD_SIZE", "MARSV2_RANK", "RANK")
        address = variables.text("MASTER_IP")
        return Place(
            nnodes=nodes,
            node_rank=rank,
            master_addr=address or Fact(None, "default"),
            ignored_exports=("MASTER_ADDR",) if address else (),
            numa_node=_half(variables),
            run_id=variables.text("MARSV2_TASK_ID"),
        )


def _half(variables: Variables) -> Fact[int | None]:
    half = variables.text("MARSV2_ASSIGNED_NUMA")
    if half is None:
        return Fact(None, "default")
    if half.value not in _HALVES:
        raise UsageError(
            f"{half.origin}: {half.value!r} is not half of a machine",
            f"set it to {' or '.join(_HALVES)}, or unset it",
        )
    return Fact(int(half.value), half.origin)
