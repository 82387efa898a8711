"""All GPUs of a machine: those that this process may open, by vendor, and those on the bus (docs/binding.md S1)."""

from collections.abc import Iterator
from typing import Protocol

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import NO_GPUS, NVIDIA_FILES, Device, Listing
from clusterrun.machine.tree import Tree

_CLASSES_OF_GPUS_ALONE = (0x0302, 0x0380, 0x1200)
"""Classes that no management controller has: 3D controller, other display, processing accelerator."""


class Vendor(Protocol):
    """The functions of each vendor's module."""

    def list_gpus(self, tree: Tree) -> Listing:
        """Return the GPUs that this process may open."""

    def list_addresses(self, tree: Tree) -> set[str]:
        """Return the normalised addresses of all on the bus."""


def list_gpus(tree: Tree) -> tuple[Listing, ...]:
    """Return the GPUs of each vendor that has any."""
    listings = tuple(
        listing for vendor in _vendors(tree) if (listing := vendor.list_gpus(tree)).devices
    )
    unnamed = NO_GPUS if listings else _by_class(tree)
    return (unnamed,) if unnamed.devices else listings


def list_addresses(tree: Tree, listings: tuple[Listing, ...]) -> tuple[str, ...]:
    """Return the addresses of all GPUs on the bus in its order, hidden ones among them."""
    ours = {device.bdf for listing in listings for device in listing.devices}
    on_bus = {address for vendor in _vendors(tree) for address in vendor.list_addresses(tree)}
    return tuple(sorted((ours | on_bus) - {""}, key=pci.in_bus_order))


def _vendors(tree: Tree) -> Iterator[Vendor]:
    """Yield the vendors whose driver may be present.

    The first is used if a machine has several and no variable chooses one.
    """
    if any(map(tree.exists, NVIDIA_FILES)) or pci.has_driver(tree, "nvidia"):
        from clusterrun.machine.gpus import nvidia

        yield nvidia
    if tree.exists("sys/class/kfd") or pci.has_driver(tree, "amdgpu"):
        from clusterrun.machine.gpus import amd

        yield amd
    if any(pci.has_driver(tree, driver) for driver in ("i915", "xe")):
        from clusterrun.machine.gpus import intel

        yield intel
    if pci.has_driver(tree, "devdrv_device_driver"):
        from clusterrun.machine.gpus import ascend

        yield ascend


def _by_class(tree: Tree) -> Listing:
    # A kernel always shows the vendor; a captured tree without it has no drivers either.
    if tree.is_live:
        return NO_GPUS
    found = [
        address
        for address, path in pci.device_directories(tree).items()
        if not tree.exists(f"{path}/vendor")
        and pci.device_class(tree, path) in _CLASSES_OF_GPUS_ALONE
    ]
    in_order = sorted(found, key=pci.in_bus_order)
    return Listing("sysfs", tuple(Device("", index, bdf) for index, bdf in enumerate(in_order)))
