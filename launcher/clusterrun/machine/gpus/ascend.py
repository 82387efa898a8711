"""Huawei's Ascend NPUs, which count as GPUs.

ASCEND_RT_VISIBLE_DEVICES is parsed as Huawei's CANN parses it.
"""

from collections.abc import Mapping

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.gpus import Visible
from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

_VENDOR = "huawei"

_DRIVER = "devdrv_device_driver"
_CLASSES = (0x1200,)
_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


def gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the NPUs that we may open, in bus order.

    The driver numbers all NPUs in bus order: /dev/davinci3 is the fourth. A container numbers its own.
    """
    ours = [
        (bdf, directory)
        for number, (bdf, directory) in enumerate(pci.driven_by(tree, _DRIVER, _CLASSES))
        if not tree.exists("dev") or tree.may_use(f"dev/davinci{number}")
    ]
    return pci.gpus_at(tree, _VENDOR, ours)


def addresses(tree: Tree) -> set[str]:
    """Return the PCI addresses of all NPUs, including those that we may not open."""
    return {bdf for bdf, _ in pci.driven_by(tree, _DRIVER, _CLASSES)}


def choose(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    """Return the NPUs that the job's environment selects, by number, up to the first invalid entry."""
    text = environ.get(_VARIABLE)
    if text is None:
        return Visible(gpus)
    origin = f"{_VARIABLE}={text}"
    by_number = {str(gpu.index): gpu for gpu in gpus}
    chosen: list[Gpu] = []
    for entry in text.split(",") if text else ():
        gpu = by_number.get(entry)
        if gpu is None or gpu in chosen:
            warning = f"{origin}: {entry!r} is not an NPU of this node, or is listed twice"
            return Visible(tuple(chosen), origin, f"{warning}; CANN ends the list there")
        chosen.append(gpu)
    return Visible(tuple(chosen), origin)
