"""CUDA_VISIBLE_DEVICES, read as CUDA and torch read it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from clusterrun.machine.gpus.devices import Choice, Device, Listing

VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_ENDS = "CUDA ends the list there"
_EMPTIES = "CUDA then shows none"


class Entries(NamedTuple):
    """The entries that count: all numbers or all ids (``GPU-...``, ``MIG-...``)."""

    ids: tuple[int, ...] | tuple[str, ...]
    remark: str
    """Which entry cut the list short; "" if none did."""


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which GPUs the job's environment leaves.

    Without the variable, and by number, they are whole GPUs: CUDA finds a MIG slice by its name.
    The beginning of a UUID is enough if only one GPU has it. The first entry that names no GPU ends
    the list; two that name the same GPU empty it.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return Choice(_wholes(listing), "", _split(listing, _wholes(listing)))
    origin, entries = f"{VARIABLE}={text}", parse(text)
    chosen: list[Device] = []
    for entry in entries.ids:
        device = _device_of(entry, listing)
        if device is None:
            return Choice(tuple(chosen), origin, f"{VARIABLE}: {entry} is not a GPU here; {_ENDS}")
        if device in chosen:
            return Choice((), origin, f"{VARIABLE}: {entry} names a GPU twice; {_EMPTIES}")
        chosen.append(device)
    return Choice(tuple(chosen), origin, entries.remark or _split(listing, chosen))


def is_order_known(listing: Listing, environ: Mapping[str, str]) -> bool:
    """Return whether CUDA numbers the GPUs as ``listing`` does, or they are named by their ids.

    By default CUDA puts the fastest first; GPUs of one model are in bus order.
    """
    ids = parse(environ.get(VARIABLE, "0")).ids
    return (
        len({device.model for device in _wholes(listing)}) == 1
        or environ.get(_ORDER) == "PCI_BUS_ID"
        or all(isinstance(entry, str) for entry in ids)
    )


def parse(text: str) -> Entries:
    """Return the entries of a CUDA_VISIBLE_DEVICES that count, as torch 2.13 parses it.

    Numbers are read as strtoul does ("2ampere" is 2). The first entry that is not what the list
    began with ends it; an entry given twice empties it.
    """
    for prefix in ("GPU-", "MIG-"):
        if text.startswith(prefix):
            return _parse_ids(text, prefix)
    return _parse_numbers(text)


def _parse_ids(text: str, prefix: str) -> Entries:
    ids: list[str] = []
    for entry in text.split(","):
        if entry in ids:
            return Entries((), _twice(entry, text))
        if not entry.startswith(prefix):
            return Entries(tuple(ids), _cut(entry, text))
        ids.append(entry)
    return Entries(tuple(ids), "")


def _parse_numbers(text: str) -> Entries:
    numbers: list[int] = []
    for entry in text.split(","):
        found = re.match("[+-]?[0-9]+", entry.strip())
        number = int(found.group()) if found else -1
        if number in numbers:
            return Entries((), _twice(entry, text))
        if number < 0:
            return Entries(tuple(numbers), _cut(entry, text))
        numbers.append(number)
    return Entries(tuple(numbers), "")


def _device_of(entry: int | str, listing: Listing) -> Device | None:
    wholes = _wholes(listing)
    if isinstance(entry, int):
        return wholes[entry] if entry < len(wholes) else None
    if entry.startswith("MIG-"):
        return _slice(entry, listing)
    return _only(device for device in wholes if device.uuid.startswith(entry))


def _slice(entry: str, listing: Listing) -> Device | None:
    if listing.source == "NVML":
        return _only(
            device
            for device in listing.devices
            if device.parent and (device.uuid.startswith(entry) or device.legacy_name == entry)
        )
    # Only NVML lists slices. Without it CUDA still takes their names, and the GPU of a slice is the
    # one in its name, or the only one.
    wholes = _wholes(listing)
    uuid = entry.removeprefix("MIG-").partition("/")[0]
    whole = _only(one for one in wholes if len(wholes) == 1 or one.uuid == uuid)
    return whole and whole._replace(uuid=entry, parent=whole.uuid)


def _wholes(listing: Listing) -> tuple[Device, ...]:
    return tuple(device for device in listing.devices if not device.parent)


def _only(devices: Iterable[Device]) -> Device | None:
    found = list(devices)
    return found[0] if len(found) == 1 else None


def _split(listing: Listing, chosen: Sequence[Device]) -> str:
    """Return a remark on GPUs whose slices are not named: all slices but one are not used."""
    uuids = [device.uuid for device in chosen]
    slices = [device for device in listing.devices if device.parent and device.parent in uuids]
    if len(slices) <= 1:
        return ""
    names = [one.uuid for one in slices]
    split = ",".join(sorted({str(device.number) for device in slices}))
    return (
        f"GPU {split} is split into {len(slices)} MIG slices, of which CUDA shows a process one;"
        f" for a worker on each: --devices {','.join(names)} --virtual-local-rank"
    )


def _cut(entry: str, text: str) -> str:
    return f"{VARIABLE}={text}: {entry!r} is neither number nor UUID; {_ENDS}"


def _twice(entry: str, text: str) -> str:
    return f"{VARIABLE}={text}: {entry!r} is listed twice; {_EMPTIES}"
