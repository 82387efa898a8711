"""High-Flyer's HAI platform: pods of a task (HFAiLab/hai-platform f9119b1).

RANK and WORLD_SIZE count machines there (base_task.py, single_task_impl.py). MASTER_ADDR is
"localhost" on the first and a name elsewhere, until a script has waited for the name and writes the
address into MASTER_IP and MASTER_ADDR (pod spec, waiting_for_master.sh): so MASTER_IP comes first.
"""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.clusters.cluster import Inputs, Place
from clusterrun.sources.clusters.variables import Variables, expect_rank

_SIMULATED = "HFAI_SIMULATE"
"""1 under ``hfai python``, which plays a task of one machine."""

_HALVES = ("0", "1")
"""What MARSV2_ASSIGNED_NUMA may be: the task shares its machines, and has this half of each."""


class Hfai:
    """A pod of a task."""

    def sign(self, environ: Mapping[str, str]) -> str:
        """Return the name of the variable with the machine's rank, or of another of the platform's."""
        variables = Variables(environ)
        found = variables.text("MARSV2_RANK", "MARSV2_TASK_ID", "MARSV2_NODE_NAME", _SIMULATED)
        if found is None or (found.origin == _SIMULATED and found.value != "1"):
            return ""
        return found.origin

    def place(self, inputs: Inputs) -> Place:
        """Return the place of this machine among those of the task."""
        variables = Variables(inputs.variables)
        nodes = variables.expect("WORLD_SIZE")
        rank = variables.expect("MARSV2_RANK", "RANK")
        expect_rank(rank, nodes)
        address = variables.text("MASTER_IP")
        return Place(
            nnodes=nodes,
            node_rank=rank,
            hosts=Fact((), "default"),
            master_addr=address or Fact(None, "default"),
            own_exports=("MASTER_ADDR",) if address else (),
            numa_node=_half(variables),
            run_id=variables.text("MARSV2_TASK_ID"),
        )


def _half(variables: Variables) -> Fact[int | None]:
    said = variables.text("MARSV2_ASSIGNED_NUMA")
    if said is None:
        return Fact(None, "default")
    if said.value not in _HALVES:
        raise UsageError(
            f"{said.origin}: {said.value!r} is not the half of a machine",
            f"set it to {' or '.join(_HALVES)}, or unset it",
        )
    return Fact(int(said.value), said.origin)
