"""Intel's GPUs, by their render nodes; without graphics that are built into a processor."""

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import Device, Listing
from clusterrun.machine.tree import Tree

VENDOR = "intel"

_DRIVERS = ("i915", "xe")
_CLASSES = (0x0300, 0x0302, 0x0380)
_BUILT_IN = "0000:00:02.0"
"""Where Intel's processors have had their graphics since 2004."""


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
    tiles = sum(name.removeprefix("tile").isdecimal() for name in tree.names(directory))
    cards = [name for name in tree.names(f"{directory}/drm") if name.startswith("card")]
    parts = [name for card in cards[:1] for name in tree.names(f"{directory}/drm/{card}/gt")]
    return max(1, tiles, sum(name.removeprefix("gt").isdecimal() for name in parts))
