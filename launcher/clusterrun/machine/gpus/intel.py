"""Intel's GPUs, by their render nodes; without graphics that are built into a processor.

ZE_AFFINITY_MASK is read as Intel's Level Zero reads it.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import Choice, Device, Listing
from clusterrun.machine.tree import Tree

VENDOR = "intel"

_DRIVERS = ("i915", "xe")
_CLASSES = (0x0300, 0x0302, 0x0380)
_BUILT_IN = "0000:00:02.0"
"""Where Intel's processors have had their graphics since 2004."""

_VARIABLE = "ZE_AFFINITY_MASK"
_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs that we may open in bus order, each tile of one as a GPU of its own."""
    devices: list[Device] = []
    for bdf, directory in _by_address(tree):
        if _may_open(tree, directory):
            model = pci.model_numbers(tree, directory)
            tiles = _count_tiles(tree, directory)
            devices += [
                Device(VENDOR, len(devices) + tile, bdf, model=model) for tile in range(tiles)
            ]
    return Listing("sysfs", tuple(devices))


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs, including those that we may not open."""
    return {bdf for bdf, _ in _by_address(tree)}


def _by_address(tree: Tree) -> list[tuple[str, str]]:
    found = [gpu for driver in _DRIVERS for gpu in pci.driven_by(tree, driver, _CLASSES)]
    apart = [(bdf, directory) for bdf, directory in found if bdf != _BUILT_IN]
    return sorted(apart, key=lambda pair: pci.in_bus_order(pair[0]))


def _may_open(tree: Tree, directory: str) -> bool:
    if not tree.exists("dev"):
        return True
    render = (name for name in tree.names(f"{directory}/drm") if name.startswith("renderD"))
    return any(tree.may_use(f"dev/dri/{name}") for name in render)


def _count_tiles(tree: Tree, directory: str) -> int:
    # xe has a directory for each tile, i915 (out of tree, for Data Center Max) a "gt" for each.
    cards = [name for name in tree.names(f"{directory}/drm") if name.startswith("card")]
    parts = tree.numbers(f"{directory}/drm/{cards[0]}/gt", "gt") if cards else ()
    return max(1, len(tree.numbers(directory, "tile")), len(parts))


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which GPUs the job's environment leaves, in the order of the bus whatever the mask's.

    A tile is a device of its own, unless ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE makes each card one.
    ``1.0``, a tile of a device, leaves that device; entries that name none are ignored.
    """
    devices = listing.devices
    if environ.get(_HIERARCHY) == "COMPOSITE":
        devices = _cards(devices)
    text = environ.get(_VARIABLE, "")
    if not text:
        return Choice(devices, "", "")
    names = [entry.strip() for entry in text.split(",")]
    numbers = {name.partition(".")[0] for name in names}
    chosen = tuple(device for device in devices if str(device.number) in numbers)
    known = {str(device.number) for device in devices}
    lost = [name for name in names if name.partition(".")[0] not in known]
    remark = f"{_VARIABLE}={text}: {lost[0]!r} is not a GPU here" if lost else ""
    return Choice(chosen, f"{_VARIABLE}={text}", remark)


def _cards(tiles: tuple[Device, ...]) -> tuple[Device, ...]:
    first = {tile.bdf: tile for tile in reversed(tiles)}
    in_order = [tile for tile in tiles if first[tile.bdf] is tile]
    return tuple(replace(tile, number=number) for number, tile in enumerate(in_order))
