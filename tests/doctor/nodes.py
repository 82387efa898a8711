"""The facts of three nodes."""

from clusterrun.clients.doctor.compare import NodeFacts
from clusterrun.clients.doctor.torch_program import TorchFacts

LABELS = ("n0", "n1", "n2")

NODES = tuple(
    NodeFacts(
        node=rank,
        host=name,
        address=f"10.0.0.{rank}",
        interfaces={"eth0": (f"10.0.0.{rank}",), "eth1": (f"10.1.0.{rank}",)},
        chosen={},
        port=4000 + rank,
        versions={"clusterrun": "0.1.0", "torch": "2.13.0", "Python": "3.12.1"},
        torch=TorchFacts(),
    )
    for rank, name in enumerate(LABELS)
)
