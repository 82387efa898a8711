"""Accelerators that are named and not counted: nobody here knows which variables choose them."""

from collections.abc import Callable
from functools import partial

from clusterrun.machine.gpus import pci
from clusterrun.machine.tree import Tree

_GOOGLE = 0x1AE0
_TPUS = frozenset({0x0027, 0x0056, 0x005E, 0x0062, 0x0063, 0x006F, 0x0076, 0x007C, 0x0083})
"""Google's other devices on a bus are network cards (jax/_src/hardware_utils.py)."""


def named(tree: Tree) -> str:
    """Return which there are and what to type, ``4 TPU chips, which ...``; "" for none.

    A machine without any costs a few looks for files: none is read.
    """
    for name, count, advice in _KINDS:
        if found := count(tree):
            plural = name if found > 1 else name.removesuffix("s")
            return f"{found} {plural}, which clusterrun does not count: {advice.format(found)}"
    return ""


def _driven(tree: Tree, driver: str, files: tuple[tuple[str, str], ...]) -> int:
    """Return the number of a driver's devices, of which a container has files for its own only."""
    if not pci.has_driver(tree, driver):
        return 0
    if tree.exists("dev"):
        return max(len(tree.numbers(folder, prefix)) for folder, prefix in files)
    return len(pci.served_by(tree, driver))


def _tpus(tree: Tree) -> int:
    # Their driver is one of the kernel's own: a virtual machine's, or none that the bus shows.
    if tree.exists("dev") and not (tree.exists("dev/accel0") or tree.numbers("dev/vfio")):
        return 0
    return sum(
        tree.integer(f"{path}/vendor") == _GOOGLE and tree.integer(f"{path}/device") in _TPUS
        for path in pci.device_directories(tree).values()
    )


_KINDS: tuple[tuple[str, Callable[[Tree], int], str], ...] = (
    (
        "Gaudi accelerators",
        partial(_driven, driver="habanalabs", files=(("dev/accel", "accel"), ("dev", "hl"))),
        "for a worker on each, give --nproc-per-node {}",
    ),
    # Each has two to eight cores; how many is in no file.
    (
        "AWS Neuron devices",
        partial(_driven, driver="neuron-driver", files=(("dev", "neuron"),)),
        "for a worker on each of their cores, give --nproc-per-node",
    ),
    ("TPU chips", _tpus, "for a worker on each, give --nproc-per-node {}"),
)
