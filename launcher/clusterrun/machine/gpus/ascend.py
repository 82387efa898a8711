"""Huawei's Ascend NPUs, which count as GPUs, by their device files and bus addresses.

ASCEND_RT_VISIBLE_DEVICES is read as Huawei's CANN reads it.
"""

from collections.abc import Mapping

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import Choice, Device, Listing
from clusterrun.machine.tree import Tree

VENDOR = "huawei"

_DRIVER = "devdrv_device_driver"
_CLASSES = (0x1200,)
_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


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


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which NPUs the job's environment leaves: numbers, up to the first that is not one."""
    text = environ.get(_VARIABLE)
    if text is None:
        return Choice(listing.devices, "", "")
    origin = f"{_VARIABLE}={text}"
    by_number = {str(device.number): device for device in listing.devices}
    chosen: list[Device] = []
    for entry in text.split(",") if text else ():
        device = by_number.get(entry)
        if device is None or device in chosen:
            remark = f"{origin}: {entry!r} is not an NPU here, or is listed twice"
            return Choice(tuple(chosen), origin, f"{remark}; CANN ends the list there")
        chosen.append(device)
    return Choice(tuple(chosen), origin, "")
