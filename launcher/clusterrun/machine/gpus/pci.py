"""PCI addresses, and devices in /sys/bus/pci."""

import re
from collections.abc import Collection, Iterable

from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

_ADDRESS = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])"
_DEVICES = "sys/bus/pci/devices"
_DRIVERS = "sys/bus/pci/drivers"


def normalised(address: str) -> str | None:
    """Return a PCI address in the form ``0000:17:00.0``; None if it is malformed.

    NVML writes eight digits of the domain, /sys four or more.
    """
    found = re.fullmatch(_ADDRESS, address.strip().lower())
    if not found:
        return None
    return address_of(*(int(part, 16) for part in found.groups()))


def address_of(domain: int, bus: int, device: int, function: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def in_bus_order(address: str) -> tuple[int, ...]:
    """Return a key that sorts normalised addresses by value."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def directory_of(tree: Tree, address: str) -> str | None:
    """Return the directory of the device with a normalised address; None if there is none."""
    usual = f"{_DEVICES}/{address}"
    # /sys uses the normalised form; trees from other tools may not.
    return usual if tree.exists(usual) else device_directories(tree).get(address)


def device_directories(tree: Tree) -> dict[str, str]:
    """Return the directories of all PCI devices, by normalised address."""
    named = ((normalised(name), name) for name in tree.names(_DEVICES))
    return {address: f"{_DEVICES}/{name}" for address, name in named if address}


def has_driver(tree: Tree, driver: str) -> bool:
    if tree.exists(_DRIVERS):
        return tree.exists(f"{_DRIVERS}/{driver}")
    return any(served_by(tree, driver))


def driven_by(tree: Tree, driver: str, classes: Collection[int]) -> list[tuple[str, str]]:
    """Return address and directory of a driver's devices of some classes, in bus order.

    Virtual functions are excluded, because they are parts of other devices.
    """
    found = [
        (address, directory)
        for directory in served_by(tree, driver)
        if (address := normalised(directory.rpartition("/")[2]))
        and device_class(tree, directory) in classes
        and not tree.exists(f"{directory}/physfn")
    ]
    return sorted(found, key=lambda device: in_bus_order(device[0]))


def gpus_at(tree: Tree, vendor: str, found: Iterable[tuple[str, str]]) -> tuple[Gpu, ...]:
    """Return GPUs with these addresses and directories, numbered in this order."""
    return tuple(
        Gpu(index, address, vendor=vendor, model=model_numbers(tree, directory), listed_by="sysfs")
        for index, (address, directory) in enumerate(found)
    )


def served_by(tree: Tree, driver: str) -> list[str]:
    """Return the paths of a driver's devices, and of the other files in its directory."""
    folder = f"{_DRIVERS}/{driver}"
    if tree.exists(_DRIVERS):
        return [f"{folder}/{name}" for name in tree.names(folder)]
    # hwloc-gather-topology captures devices without the directory of drivers.
    devices = device_directories(tree).values()
    return [device for device in devices if tree.real(f"{device}/driver") == folder]


def device_class(tree: Tree, directory: str) -> int | None:
    """Return class and subclass of a device, such as 0x0302 for a 3D controller; None if unknown."""
    number = tree.integer(f"{directory}/class")
    return None if number is None else number >> 8


def model_numbers(tree: Tree, directory: str) -> str:
    """Return vendor and device id in the form of lspci, ``10de:20b0``; "" if unknown."""
    vendor, device = tree.integer(f"{directory}/vendor"), tree.integer(f"{directory}/device")
    return "" if vendor is None or device is None else f"{vendor:04x}:{device:04x}"
