"""ZE_AFFINITY_MASK, read as Intel's Level Zero reads it."""

from collections.abc import Mapping

from clusterrun.machine.gpus.devices import Choice, Device, Listing

VARIABLE = "ZE_AFFINITY_MASK"
_HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which GPUs the job's environment leaves, in the order of the bus whatever the mask's.

    A tile is a device of its own, unless ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE makes each card one.
    ``1.0``, a tile of a device, leaves that device; entries that name none are ignored.
    """
    devices = listing.devices
    if environ.get(_HIERARCHY) == "COMPOSITE":
        devices = _cards(devices)
    text = environ.get(VARIABLE, "")
    if not text:
        return Choice(devices, "", "")
    names = [entry.strip() for entry in text.split(",")]
    numbers = {name.partition(".")[0] for name in names}
    chosen = tuple(device for device in devices if str(device.number) in numbers)
    known = {str(device.number) for device in devices}
    lost = [name for name in names if name.partition(".")[0] not in known]
    remark = f"{VARIABLE}={text}: {lost[0]!r} is not a GPU here" if lost else ""
    return Choice(chosen, f"{VARIABLE}={text}", remark)


def _cards(tiles: tuple[Device, ...]) -> tuple[Device, ...]:
    first = {tile.bdf: tile for tile in reversed(tiles)}
    in_order = [tile for tile in tiles if first[tile.bdf] is tile]
    return tuple(tile._replace(number=number) for number, tile in enumerate(in_order))
