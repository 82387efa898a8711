"""NVIDIA's GPUs: from NVML, else from the driver's directory in /proc, else from the PCI bus.

CUDA_VISIBLE_DEVICES is read as CUDA and torch read it.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.machine.gpus import pci
from clusterrun.machine.gpus.devices import NVIDIA_FILES, Choice, Device, Listing
from clusterrun.machine.gpus.nvml import HUNG, NvmlGpu, ask_in_child, gpus_in
from clusterrun.machine.tree import Tree, cpus_of

VENDOR = "nvidia"

_PROC = "proc/driver/nvidia"
_SOURCE = "/proc/driver/nvidia"
_CLASSES = (0x0300, 0x0302)

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_ENDS = "CUDA ends the list there"
_EMPTIES = "CUDA then shows none"


def list_gpus(tree: Tree) -> Listing:
    """Return the GPUs of the first source that lists any (docs/binding.md S1)."""
    # Only NVML knows what the driver lets this container use.
    answer = tree.answer("nvml", ask_in_child) if any(map(tree.exists, NVIDIA_FILES)) else ""
    devices = from_nvml(gpus_in(answer))
    if devices:
        return Listing("NVML", devices)
    # The driver's own list, if NVML is missing or broken, or hangs.
    hung = answer == HUNG
    devices = _by_proc(tree, tree.may_use if hung else tree.can_open)
    if devices:
        return Listing(f"{_SOURCE} (NVML does not answer)" if hung else _SOURCE, devices)
    # A tree may have been captured without /proc.
    return Listing("sysfs", _by_driver(tree))


def list_addresses(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs that the driver has, including those that we may not open."""
    names = map(pci.normalised, tree.names(f"{_PROC}/gpus"))
    driven = (bdf for bdf, _ in pci.driven_by(tree, VENDOR, _CLASSES))
    return {*filter(None, names), *driven}


def from_nvml(gpus: tuple[NvmlGpu, ...]) -> tuple[Device, ...]:
    """Return the whole GPUs in NVML's order, which numbers them, and after them their slices."""
    wholes = [gpu.uuid for gpu in gpus if not gpu.parent]
    number = {uuid: index for index, uuid in enumerate(wholes)}
    devices = [
        Device(
            VENDOR,
            number[gpu.parent or gpu.uuid],
            pci.normalised(gpu.address) or "",
            gpu.uuid,
            gpu.model,
            gpu.parent,
            gpu.legacy_name,
            cpus_of(gpu.cpus),
            cpus_of(gpu.nodes),
        )
        for gpu in gpus
        # In an edited answer a slice may belong to no GPU.
        if (gpu.parent or gpu.uuid) in number
    ]
    return tuple(sorted(devices, key=lambda device: bool(device.parent)))


def _by_proc(tree: Tree, may_open: Callable[[str], bool]) -> tuple[Device, ...]:
    # If NVML hangs, opening a GPU's file may hang, too, and no signal would end that.
    found = []
    for name in tree.names(f"{_PROC}/gpus"):
        facts = tree.facts(f"{_PROC}/gpus/{name}/information", ":")
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        minor = facts.get("Device Minor", "")
        # A container sees all GPUs of its host here, but may open only its own.
        if bdf and (not minor or not tree.exists("dev") or may_open(f"dev/nvidia{minor}")):
            found.append(Device(VENDOR, 0, bdf, facts.get("GPU UUID", ""), facts.get("Model", "")))
    in_order = sorted(found, key=lambda device: pci.in_bus_order(device.bdf))
    return tuple(replace(device, number=number) for number, device in enumerate(in_order))


def _by_driver(tree: Tree) -> tuple[Device, ...]:
    # If the driver's directory exists, its list has no GPU that we may open; hwloc keeps the
    # directory as an empty file.
    if tree.names(_PROC) or tree.exists("dev"):
        return ()
    return pci.devices_of(tree, VENDOR, pci.driven_by(tree, VENDOR, _CLASSES))


class Entries(NamedTuple):
    """The entries that count: all numbers or all ids (``GPU-...``, ``MIG-...``)."""

    ids: tuple[int | str, ...]
    remark: str
    """Which entry cut the list short; "" if none did."""


def choose(listing: Listing, environ: Mapping[str, str]) -> Choice:
    """Return which GPUs the job's environment leaves.

    Without the variable, and by number, they are whole GPUs: CUDA finds a MIG slice by its name.
    The beginning of a UUID is enough if only one GPU has it. The first entry that names no GPU ends
    the list; two that name the same GPU empty it.
    """
    text = environ.get(_VARIABLE)
    if text is None:
        return Choice(_wholes(listing), "", _split(listing, _wholes(listing)))
    origin, entries = f"{_VARIABLE}={text}", parse(text)
    chosen: list[Device] = []
    for entry in entries.ids:
        device = _device_of(entry, listing)
        if device is None:
            return Choice(tuple(chosen), origin, f"{_VARIABLE}: {entry} is not a GPU here; {_ENDS}")
        if device in chosen:
            return Choice((), origin, f"{_VARIABLE}: {entry} names a GPU twice; {_EMPTIES}")
        chosen.append(device)
    return Choice(tuple(chosen), origin, entries.remark or _split(listing, chosen))


def is_order_known(listing: Listing, environ: Mapping[str, str]) -> bool:
    """Return whether CUDA numbers the GPUs as ``listing`` does, or they are named by their ids.

    By default CUDA puts the fastest first; GPUs of one model are in bus order.
    """
    ids = parse(environ.get(_VARIABLE, "0")).ids
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
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if text.startswith(prefix)), "")
    read: list[int | str] = []
    for entry in text.split(","):
        name = _read(entry, prefix)
        if name is None:
            remark = f"{_VARIABLE}={text}: {entry!r} is neither number nor UUID; {_ENDS}"
            return Entries(tuple(read), remark)
        if name in read:
            return Entries((), f"{_VARIABLE}={text}: {entry!r} is listed twice; {_EMPTIES}")
        read.append(name)
    return Entries(tuple(read), "")


def _read(entry: str, prefix: str) -> int | str | None:
    if prefix:
        return entry if entry.startswith(prefix) else None
    found = re.match("[+-]?[0-9]+", entry.strip())
    number = int(found.group()) if found else -1
    return number if number >= 0 else None


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
    return whole and replace(whole, uuid=entry, parent=whole.uuid)


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
