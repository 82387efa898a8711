"""NVIDIA's GPUs: from NVML, else from the driver's directory in /proc, else from the PCI bus.

CUDA_VISIBLE_DEVICES is read as CUDA and torch read it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from clusterrun.cpuset import number_ranges
from clusterrun.machine.gpus import nvml, pci
from clusterrun.machine.gpus.gpus import HUNG, NVIDIA_FILES, Visible
from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import Tree

_VENDOR = "nvidia"

_PROC = "proc/driver/nvidia"
_SOURCE = "/proc/driver/nvidia"
_CLASSES = (0x0300, 0x0302)

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_ORDER = "CUDA_DEVICE_ORDER"
_ORDER_UNKNOWN = "unknown: CUDA may number GPUs of several models in another order"
_ORDER_WARNING = (
    "GPUs of several models on several NUMA nodes: CUDA numbers the fastest first, so the node of a"
    " worker's GPU is unknown; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"
)

_SHORTEST = len("MIG-") + 4
"""Characters of a UUID that a warning names at least."""
_LONGEST_NAMES = 100
"""Characters of all names in a warning."""

_MAX_DIGITS = 20
"""Of a number of 64 bits, with its sign."""

_IDS = ("GPU-", "MIG-")
"""How the UUIDs of whole GPUs begin, and those of MIG slices."""
_KINDS = {
    "": "not a number, unlike the first",
    "GPU-": "not a whole GPU, unlike the first",
    "MIG-": "not a MIG slice, unlike the first",
}
"""All entries are of one kind."""

_ENDS = "CUDA ends the list there"
_EMPTIES = "CUDA then shows none"


def gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the GPUs of the first source that lists any (docs/binding.md S1)."""
    # Only NVML knows what the driver lets this container use.
    answer = tree.answer("nvml", nvml.ask) if any(map(tree.exists, NVIDIA_FILES)) else ""
    # Then the driver's own list, if NVML is missing or broken, or hangs; then the bus: a tree may
    # have been captured without /proc.
    return nvml.gpus_in(answer) or _by_proc(tree, is_hung=answer == HUNG) or _by_driver(tree)


def addresses(tree: Tree) -> set[str]:
    """Return the addresses of all GPUs that the driver has, including those that we may not open."""
    names = map(pci.normalised, tree.names(f"{_PROC}/gpus"))
    driven = (bdf for bdf, _ in pci.driven_by(tree, _VENDOR, _CLASSES))
    return {*filter(None, names), *driven}


def _by_proc(tree: Tree, *, is_hung: bool) -> tuple[Gpu, ...]:
    # If NVML hangs, opening a GPU's file may hang, too, and no signal would end that.
    may_open = tree.may_use if is_hung else tree.can_open
    source = f"{_SOURCE} (NVML does not answer)" if is_hung else _SOURCE
    found = []
    for name in tree.names(f"{_PROC}/gpus"):
        facts = tree.facts(f"{_PROC}/gpus/{name}/information", ":")
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        minor = facts.get("Device Minor", "")
        # A container sees all GPUs of its host here, but may open only its own.
        if bdf and (not minor or not tree.exists("dev") or may_open(f"dev/nvidia{minor}")):
            uuid, model = facts.get("GPU UUID", ""), facts.get("Model", "")
            found.append(Gpu(0, bdf, uuid, vendor=_VENDOR, model=model, listed_by=source))
    # A driver that has not initialised its GPUs yet writes one text for all: GPU-????????-...
    times = Counter(gpu.uuid for gpu in found)
    return tuple(
        replace(gpu, index=index, uuid="" if "?" in gpu.uuid or times[gpu.uuid] > 1 else gpu.uuid)
        for index, gpu in enumerate(sorted(found, key=lambda gpu: pci.in_bus_order(gpu.bdf)))
    )


def _by_driver(tree: Tree) -> tuple[Gpu, ...]:
    # If the driver's directory exists, its list has no GPU that we may open; hwloc keeps the
    # directory as an empty file.
    if tree.names(_PROC) or tree.exists("dev"):
        return ()
    return pci.gpus_at(tree, _VENDOR, pci.driven_by(tree, _VENDOR, _CLASSES))


class Entries(NamedTuple):
    """The entries that count: all numbers or all ids (``GPU-...``, ``MIG-...``)."""

    ids: tuple[int | str, ...]
    warning: str
    """Which entry cut the list short; "" if none did."""


def choose(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    """Return which GPUs the job's environment leaves.

    Without the variable, and by number, they are whole GPUs: CUDA finds a MIG slice by its name.
    The beginning of a UUID is enough if only one GPU has it. The first entry that names no GPU ends
    the list; two that name the same GPU empty it. If CUDA may number them in another order, their
    nodes are unknown.
    """
    left = _left(gpus, environ)
    nodes = {gpu.numa_node for gpu in gpus}
    if not left.gpus or len(nodes) <= 1 or _is_order_known(gpus, environ):
        return left
    unplaced = (replace(gpu, numa_node=None, node_source=_ORDER_UNKNOWN) for gpu in left.gpus)
    warning = "; ".join(filter(None, (left.warning, _ORDER_WARNING)))
    return Visible(tuple(unplaced), left.origin, warning)


def _left(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    text = environ.get(_VARIABLE)
    if text is None:
        return Visible(_wholes(gpus), "", _split(gpus, _wholes(gpus)))
    origin, entries = f"{_VARIABLE}={text}", parse(text)
    chosen: list[Gpu] = []
    for entry in entries.ids:
        gpu = _named(entry, gpus)
        if gpu is None:
            return Visible(
                tuple(chosen), origin, f"{_VARIABLE}: {entry} is not a GPU here; {_ENDS}"
            )
        if gpu in chosen:
            return Visible((), origin, f"{_VARIABLE}: {entry} names a GPU twice; {_EMPTIES}")
        chosen.append(gpu)
    return Visible(tuple(chosen), origin, entries.warning or _split(gpus, chosen))


def _is_order_known(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> bool:
    """Return whether CUDA numbers the GPUs as ``gpus`` does, or they are named by their ids.

    By default CUDA puts the fastest first; GPUs of one model are in bus order.
    """
    ids = parse(environ.get(_VARIABLE, "0")).ids
    return (
        len({gpu.model for gpu in _wholes(gpus)}) == 1
        or environ.get(_ORDER) == "PCI_BUS_ID"
        or all(isinstance(entry, str) for entry in ids)
    )


def parse(text: str) -> Entries:
    """Return the entries of a CUDA_VISIBLE_DEVICES that count, as torch 2.13 parses it.

    Numbers are read as strtoul does ("2ampere" is 2). The first entry that is not what the list
    began with ends it; an entry given twice empties it.
    """
    prefix = next((prefix for prefix in _IDS if text.startswith(prefix)), "")
    read: list[int | str] = []
    for entry in text.split(","):
        name = _read(entry, prefix)
        if name is None:
            wrong = _KINDS[prefix] if entry.startswith(_IDS) else "neither number nor UUID"
            return Entries(tuple(read), f"{_VARIABLE}={text}: {entry!r} is {wrong}; {_ENDS}")
        if name in read:
            return Entries((), f"{_VARIABLE}={text}: {entry!r} is listed twice; {_EMPTIES}")
        read.append(name)
    return Entries(tuple(read), "")


def _read(entry: str, prefix: str) -> int | str | None:
    if prefix:
        return entry if entry.startswith(prefix) else None
    found = re.match("[+-]?[0-9]+", entry.strip())
    # Python raises an error for thousands of digits; CUDA has no GPU of such a number.
    number = int(found.group()) if found and len(found.group()) <= _MAX_DIGITS else -1
    return number if number >= 0 else None


def _named(entry: int | str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    wholes = _wholes(gpus)
    if isinstance(entry, int):
        return wholes[entry] if entry < len(wholes) else None
    if entry.startswith("MIG-"):
        return _slice(entry, gpus)
    return _only(gpu for gpu in wholes if gpu.uuid.startswith(entry))


def _slice(entry: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if gpus[0].listed_by == "NVML":
        return _only(
            gpu
            for gpu in gpus
            if gpu.parent and (gpu.uuid.startswith(entry) or gpu.legacy_name == entry)
        )
    # Only NVML lists slices. Without it CUDA still takes their names, and the GPU of a slice is the
    # one in its name, or the only one.
    uuid = entry.removeprefix("MIG-").partition("/")[0]
    whole = _only(gpu for gpu in gpus if len(gpus) == 1 or gpu.uuid == uuid)
    return whole and replace(whole, uuid=entry, parent=whole.uuid or whole.device)


def _wholes(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus if not gpu.parent)


def _only(gpus: Iterable[Gpu]) -> Gpu | None:
    found = list(gpus)
    return found[0] if len(found) == 1 else None


def _split(gpus: tuple[Gpu, ...], chosen: Sequence[Gpu]) -> str:
    """Return a warning on GPUs whose slices are not named: all slices but one are not used."""
    uuids = {gpu.uuid for gpu in chosen}
    slices = [gpu for gpu in gpus if gpu.parent and gpu.parent in uuids]
    if len(slices) <= 1:
        return ""
    numbers = {gpu.index for gpu in slices}
    split = ",".join(number_ranges(numbers))
    are = f"GPU {split} is" if len(numbers) == 1 else f"GPUs {split} are"
    names = [_short(gpu.uuid, gpus) for gpu in slices]
    while len(",".join(names)) > _LONGEST_NAMES:
        names.pop()
    each, rest = "each", ""
    if len(names) < len(slices):
        each, rest = f"{len(names)} of them", " (clusterrun topo lists all)"
    return (
        f"{are} split into {len(slices)} MIG slices, of which CUDA shows a process one;"
        f" for a worker on {each}: --devices {','.join(names)} --virtual-local-rank{rest}"
    )


def _short(uuid: str, gpus: tuple[Gpu, ...]) -> str:
    """Return a beginning that no other GPU's UUID has, in any case of letters, as --devices reads it."""
    others = [gpu.uuid.lower() for gpu in gpus if gpu.uuid != uuid]
    for length in range(_SHORTEST, len(uuid)):
        if not any(other.startswith(uuid[:length].lower()) for other in others):
            return uuid[:length]
    return uuid
