"""Accelerators that clusterrun does not count as GPUs, because no variables to choose them are known."""

from collections.abc import Callable
from functools import partial

from clusterrun.machine.gpus import pci
from clusterrun.machine.tree import Tree

_GOOGLE = 0x1AE0
_TPUS = frozenset({0x0027, 0x0056, 0x005E, 0x0062, 0x0063, 0x006F, 0x0076, 0x007C, 0x0083})
"""Device ids. Google's other PCI devices are network cards (jax/_src/hardware_utils.py)."""


def accelerators_warning(tree: Tree) -> str:
    """Return which accelerators there are and what to do, ``4 TPU chips, which ...``; "" for none.

    On a machine without any, only the existence of a few files is checked.
    """
    for name, count, advice in _KINDS:
        if found := count(tree):
            plural = name if found > 1 else name.removesuffix("s")
            return f"{found} {plural}, which clusterrun does not count: {advice.format(found)}"
    return ""


def _driven(tree: Tree, driver: str, files: tuple[tuple[str, str], ...]) -> int:
    """Return the number of a driver's devices; in a container, those that have device files."""
    if not pci.has_driver(tree, driver):
        return 0
    if tree.exists("dev"):
        return max(len(tree.numbers(folder, prefix)) for folder, prefix in files)
    return len(pci.served_by(tree, driver))


def _tpus(tree: Tree) -> int:
    # The driver shows nothing: it is one for virtual machines, or is not on the bus.
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
    # Each has two to eight cores, but no file has their number.
    (
        "AWS Neuron devices",
        partial(_driven, driver="neuron-driver", files=(("dev", "neuron"),)),
        "for a worker on each of their cores, give --nproc-per-node",
    ),
    ("TPU chips", _tpus, "for a worker on each, give --nproc-per-node {}"),
)
