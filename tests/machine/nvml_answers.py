"""What NVML answers of invented GPUs."""

from collections.abc import Sequence
from pathlib import Path

from clusterrun.machine.machine import Gpu, Hints
from clusterrun.machine.tree import KernelAnswers, Tree
from msgspec import json
from msgspec.structs import replace

from tests.machine_trees import write_files


def whole(
    index: int, uuid: str = "", bdf: str = "", model: str = "", hints: Hints | None = None
) -> Gpu:
    """Return a GPU; without an address, on bus 16 and upwards."""
    return Gpu(
        index,
        bdf or f"0000:{index + 16:02x}:00.0",
        uuid or f"GPU-{index}",
        vendor="nvidia",
        model=model,
        listed_by="NVML",
        hints=hints or Hints(),
    )


def part(gpu: Gpu, uuid: str, instance: int = 1) -> Gpu:
    """Return a MIG slice of a GPU."""
    return replace(gpu, uuid=uuid, parent=gpu.uuid, legacy_name=f"MIG-{gpu.uuid}/{instance}/0")


def answered(root: Path, gpus: Sequence[Gpu]) -> Tree:
    """Return the tree of a machine, of which NVML lists these GPUs."""
    write_files(root, {"proc/driver/nvidia/version": ""})
    return Tree(root, KernelAnswers(answer={"nvml": json.encode(gpus).decode()}))
