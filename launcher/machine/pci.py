"""PCI addresses and devices in /sys/bus/pci."""

import re

from launcher.machine.tree import Tree

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
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*(int(part, 16) for part in found.groups()))


def in_bus_order(address: str) -> tuple[int, ...]:
    """Return a key that sorts normalised addresses by value."""
    return tuple(int(part, 16) for part in address.replace(".", ":").split(":"))


def device_directories(tree: Tree) -> dict[str, str]:
    """Return the directory of each PCI device, by normalised address."""
    named = ((normalised(name), name) for name in tree.names(_DEVICES))
    return {address: f"{_DEVICES}/{name}" for address, name in named if address}


def driven_by(tree: Tree, driver: str) -> tuple[str, ...]:
    """Return the directories of the devices that ``driver`` has taken."""
    names = tree.names(f"{_DRIVERS}/{driver}")
    return tuple(f"{_DRIVERS}/{driver}/{name}" for name in names if normalised(name))


def device_class(tree: Tree, directory: str) -> int | None:
    """Return class and subclass of a device: 0x0302 for a 3D controller; None if not told."""
    number = tree.integer(f"{directory}/class")
    return None if number is None else number >> 8
