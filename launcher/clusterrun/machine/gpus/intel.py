"""Intel's GPUs, by their render nodes, without integrated graphics.

ZE_AFFINITY_MASK is parsed as Intel's Level Zero parses it.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.gpus import Visible
from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

_VENDOR = "intel"

_DRIVERS = ("i915", "xe")
_CLASSES = (0x0300, 0x0302, 0x0380)
_INTEGRATED = "0000:00:02.0"
"""The address of integrated graphics in Intel's processors since 2004."""

_VARIABLE = "ZE_AFFINITY_MASK"
_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"


def gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the GPUs that we may open, in bus order; each tile of one is a GPU."""
    tiles = [
        tile
        for tile in _by_address(tree)
        if _may_open(tree, tile[1])
        for _ in range(_count_tiles(tree, tile[1]))
    ]
    return pci.gpus_at(tree, _VENDOR, tiles)


def addresses(tree: Tree) -> set[str]:
    """Return the PCI addresses of all GPUs, including those that we may not open."""
    return {bdf for bdf, _ in _by_address(tree)}


def _by_address(tree: Tree) -> list[tuple[str, str]]:
    found = [gpu for driver in _DRIVERS for gpu in pci.driven_by(tree, driver, _CLASSES)]
    discrete = [(bdf, directory) for bdf, directory in found if bdf != _INTEGRATED]
    return sorted(discrete, key=lambda pair: pci.in_bus_order(pair[0]))


def _may_open(tree: Tree, directory: str) -> bool:
    if not tree.exists("dev"):
        return True
    render = (name for name in tree.names(f"{directory}/drm") if name.startswith("renderD"))
    return any(tree.may_use(f"dev/dri/{name}") for name in render)


def _count_tiles(tree: Tree, directory: str) -> int:
    # xe has a directory "tile" for each tile; i915 (out of tree, for Data Center Max) has "gt".
    cards = [name for name in tree.names(f"{directory}/drm") if name.startswith("card")]
    parts = tree.numbers(f"{directory}/drm/{cards[0]}/gt", "gt") if cards else ()
    return max(1, len(tree.numbers(directory, "tile")), len(parts))


def choose(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    """Return the GPUs that the job's environment selects, in bus order whatever the order of the mask.

    Each tile is a device, unless ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE makes each card one device.
    ``1.0``, a tile of a device, selects the whole device; entries without a device are ignored.
    """
    if environ.get(_HIERARCHY) == "COMPOSITE":
        gpus = _cards(gpus)
    text = environ.get(_VARIABLE, "")
    if not text:
        return Visible(gpus)
    names = [entry.strip() for entry in text.split(",")]
    numbers = {name.partition(".")[0] for name in names}
    chosen = tuple(gpu for gpu in gpus if str(gpu.index) in numbers)
    known = {str(gpu.index) for gpu in gpus}
    unknown = [name for name in names if name.partition(".")[0] not in known]
    warning = f"{_VARIABLE}={text}: {unknown[0]!r} is not a GPU of this node" if unknown else ""
    return Visible(chosen, f"{_VARIABLE}={text}", warning)


def _cards(tiles: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    first = {tile.bdf: tile for tile in reversed(tiles)}
    in_order = [tile for tile in tiles if first[tile.bdf] is tile]
    return tuple(replace(tile, index=index) for index, tile in enumerate(in_order))
