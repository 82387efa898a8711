"""PCI addresses and devices in /sys/bus/pci."""

import re
from collections.abc import Collection, Iterable

from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

_ADDRESS = r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])"
_DEVICES = "sys/bus/pci/devices"
_DRIVERS = "sys/bus/pci/drivers"


def normalised(address: str) -> str | None:
    """Return a PCI address in one form, ``0000:17:00.0``; None if it isn't one.

    Addresses match by value: NVML writes eight digits of domain, /sys four or more.
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
    """Return the directory of the device with the normalised ``address``; None if it has none."""
    usual = f"{_DEVICES}/{address}"
    # /sys writes addresses in this form; trees of other tools may not.
    return usual if tree.exists(usual) else device_directories(tree).get(address)


def device_directories(tree: Tree) -> dict[str, str]:
    """Return the directory of each PCI device, by normalised address."""
    named = ((normalised(name), name) for name in tree.names(_DEVICES))
    return {address: f"{_DEVICES}/{name}" for address, name in named if address}


def has_driver(tree: Tree, driver: str) -> bool:
    """Return whether the kernel has ``driver``."""
    if tree.exists(_DRIVERS):
        return tree.exists(f"{_DRIVERS}/{driver}")
    return any(served_by(tree, driver))


def driven_by(tree: Tree, driver: str, classes: Collection[int]) -> list[tuple[str, str]]:
    """Return address and directory of the devices of these ``classes`` that ``driver`` serves.

    They are in bus order. A virtual function is a part of another device, and is left out.
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
    """Return the GPUs with these addresses and directories, numbered in their order."""
    return tuple(
        Gpu(index, address, vendor=vendor, model=model_numbers(tree, directory), listed_by="sysfs")
        for index, (address, directory) in enumerate(found)
    )


def served_by(tree: Tree, driver: str) -> list[str]:
    """Return the directories of the devices that a driver has, and of its other files."""
    folder = f"{_DRIVERS}/{driver}"
    if tree.exists(_DRIVERS):
        return [f"{folder}/{name}" for name in tree.names(folder)]
    # hwloc-gather-topology keeps devices without the folder of drivers that their links lead to.
    devices = device_directories(tree).values()
    return [device for device in devices if tree.real(f"{device}/driver") == folder]


def device_class(tree: Tree, directory: str) -> int | None:
    """Return class and subclass of a device: 0x0302 for a 3D controller; None if unknown."""
    number = tree.integer(f"{directory}/class")
    return None if number is None else number >> 8


def model_numbers(tree: Tree, directory: str) -> str:
    """Return vendor and device id as lspci writes them, ``10de:20b0``; "" if unknown."""
    vendor, device = tree.integer(f"{directory}/vendor"), tree.integer(f"{directory}/device")
    return "" if vendor is None or device is None else f"{vendor:04x}:{device:04x}"
