"""Huawei's Ascend NPUs, which count as GPUs: by their device files, and their place on the bus."""

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import NOTHING, Device, Listing
from clusterrun.machine.tree import Tree

VENDOR = "huawei"

_DRIVER = "devdrv_device_driver"
_CLASSES = (0x1200,)


def list_gpus(tree: Tree) -> Listing:
    """Return the NPUs that we may open, in the order of the bus.

    The driver numbers them so: /dev/davinci3 is the fourth there. A container counts its own.
    """
    ours = [
        (bdf, directory)
        for number, (bdf, directory) in enumerate(_by_address(tree))
        if not tree.exists("dev") or tree.may_use(f"dev/davinci{number}")
    ]
    devices = tuple(
        Device(VENDOR, index, bdf, model=pci.model_numbers(tree, directory))
        for index, (bdf, directory) in enumerate(ours)
    )
    return Listing("sysfs", devices) if devices else NOTHING


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all NPUs, of those too that we may not open."""
    return {bdf for bdf, _ in _by_address(tree)}


def _by_address(tree: Tree) -> list[tuple[str, str]]:
    directories = pci.driven_by(tree, _DRIVER, _CLASSES)
    found = zip(pci.addresses(directories), directories, strict=True)
    return sorted(found, key=lambda pair: pci.in_bus_order(pair[0]))
