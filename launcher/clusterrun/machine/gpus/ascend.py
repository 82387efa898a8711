"""Huawei's Ascend NPUs, which count as GPUs, by their device files and bus addresses."""

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import Listing
from clusterrun.machine.tree import Tree

VENDOR = "huawei"

_DRIVER = "devdrv_device_driver"
_CLASSES = (0x1200,)


def list_gpus(tree: Tree) -> Listing:
    """Return the NPUs that we may open, in the order of the bus.

    The driver numbers them in that order: /dev/davinci3 is the fourth. A container counts its own.
    """
    ours = [
        (bdf, directory)
        for number, (bdf, directory) in enumerate(pci.driven_by(tree, _DRIVER, _CLASSES))
        if not tree.exists("dev") or tree.may_use(f"dev/davinci{number}")
    ]
    return Listing("sysfs", pci.devices_of(tree, VENDOR, ours))


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all NPUs, including those that we may not open."""
    return {bdf for bdf, _ in pci.driven_by(tree, _DRIVER, _CLASSES)}
