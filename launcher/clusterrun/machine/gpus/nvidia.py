"""NVIDIA's GPUs: from NVML, else from the driver's directory in /proc, else from the PCI bus.

CUDA_VISIBLE_DEVICES is parsed as CUDA and torch parse it.
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
    "GPUs of several models on several NUMA nodes: CUDA numbers the fastest first, so the NUMA node"
    " of a worker's GPU is unknown; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"
)

_MIN_UUID_LENGTH = len("MIG-") + 4
"""Characters of an abbreviated UUID in a warning."""

_MAX_NAMES_LENGTH = 100
"""Characters of all names in a warning."""

_MAX_DIGITS = 20
"""Of a 64-bit number with its sign."""

_UUID_PREFIXES = ("GPU-", "MIG-")
"""Of whole GPUs and of MIG slices."""

_WRONG_KIND = {
    "": "not a number, unlike the first",
    "GPU-": "not a whole GPU, unlike the first",
    "MIG-": "not a MIG slice, unlike the first",
}
"""By the prefix of the first entry: what is wrong with an entry of another kind."""

_ENDS = "CUDA ends the list there"
_EMPTIES = "CUDA then shows none"


def gpus(tree: Tree) -> tuple[Gpu, ...]:
    """Return the GPUs of the first source that lists any (docs/binding.md S1)."""
    # Only NVML knows which GPUs the driver lets this container use.
    answer = tree.answer("nvml", nvml.run_query) if any(map(tree.exists, NVIDIA_FILES)) else ""
    # If NVML is missing or broken or hangs, the driver lists them; in a tree without /proc, the bus.
    return nvml.gpus_in(answer) or _by_proc(tree, is_hung=answer == HUNG) or _by_driver(tree)


def addresses(tree: Tree) -> set[str]:
    """Return the PCI addresses of all GPUs with this driver, including those that we may not open."""
    names = map(pci.normalised, tree.names(f"{_PROC}/gpus"))
    driven = (bdf for bdf, _ in pci.driven_by(tree, _VENDOR, _CLASSES))
    return {*filter(None, names), *driven}


def _by_proc(tree: Tree, *, is_hung: bool) -> tuple[Gpu, ...]:
    # If NVML hangs, opening a GPU's file may hang too, and no signal interrupts that.
    may_open = tree.may_use if is_hung else tree.can_open
    source = f"{_SOURCE} (NVML does not answer)" if is_hung else _SOURCE
    found = []
    for name in tree.names(f"{_PROC}/gpus"):
        facts = tree.facts(f"{_PROC}/gpus/{name}/information", ":")
        bdf = pci.normalised(facts.get("Bus Location", "")) or pci.normalised(name)
        minor = facts.get("Device Minor", "")
        # A container sees all GPUs of its host here, but can open only its own.
        if bdf and (not minor or not tree.exists("dev") or may_open(f"dev/nvidia{minor}")):
            uuid, model = facts.get("GPU UUID", ""), facts.get("Model", "")
            found.append(Gpu(0, bdf, uuid, vendor=_VENDOR, model=model, listed_by=source))
    # A driver that has not initialised its GPUs yet writes GPU-????????-... for all.
    times = Counter(gpu.uuid for gpu in found)
    return tuple(
        replace(gpu, index=index, uuid="" if "?" in gpu.uuid or times[gpu.uuid] > 1 else gpu.uuid)
        for index, gpu in enumerate(sorted(found, key=lambda gpu: pci.in_bus_order(gpu.bdf)))
    )


def _by_driver(tree: Tree) -> tuple[Gpu, ...]:
    # If the driver's directory exists, it lists no GPU that we may open. hwloc captures it as an empty
    # file.
    if tree.names(_PROC) or tree.exists("dev"):
        return ()
    return pci.gpus_at(tree, _VENDOR, pci.driven_by(tree, _VENDOR, _CLASSES))


class Entries(NamedTuple):
    """The valid entries of CUDA_VISIBLE_DEVICES."""

    ids: tuple[int | str, ...]
    """Either all numbers or all UUIDs (``GPU-...``, ``MIG-...``)."""
    warning: str
    """Which entry ended the list early; "" if none did."""


def choose(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    """Return the GPUs that the job's environment selects.

    Without the variable, and by number, these are whole GPUs; only a UUID selects a MIG slice. An
    unambiguous prefix of a UUID is enough. The first entry without a GPU ends the list, and two
    entries for the same GPU empty it. If CUDA may number the GPUs in another order, their NUMA nodes
    are unknown.
    """
    selected = _selected(gpus, environ)
    nodes = {gpu.numa_node for gpu in gpus}
    if not selected.gpus or len(nodes) <= 1 or _is_order_known(gpus, environ):
        return selected
    unknown = (replace(gpu, numa_node=None, node_source=_ORDER_UNKNOWN) for gpu in selected.gpus)
    warning = "; ".join(filter(None, (selected.warning, _ORDER_WARNING)))
    return Visible(tuple(unknown), selected.origin, warning)


def _selected(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Visible:
    text = environ.get(_VARIABLE)
    if text is None:
        return Visible(_whole_gpus(gpus), "", _slices_warning(gpus, _whole_gpus(gpus)))
    origin, entries = f"{_VARIABLE}={text}", parse(text)
    chosen: list[Gpu] = []
    for entry in entries.ids:
        gpu = _find(entry, gpus)
        if gpu is None:
            return Visible(
                tuple(chosen), origin, f"{_VARIABLE}: {entry} is not a GPU of this node; {_ENDS}"
            )
        if gpu in chosen:
            return Visible((), origin, f"{_VARIABLE}: {entry} names a GPU twice; {_EMPTIES}")
        chosen.append(gpu)
    return Visible(tuple(chosen), origin, entries.warning or _slices_warning(gpus, chosen))


def _is_order_known(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> bool:
    """Return whether CUDA numbers the GPUs as ``gpus`` does, or they are selected by UUID.

    By default CUDA puts the fastest GPU first. GPUs of one model are in bus order.
    """
    ids = parse(environ.get(_VARIABLE, "0")).ids
    return (
        len({gpu.model for gpu in _whole_gpus(gpus)}) == 1
        or environ.get(_ORDER) == "PCI_BUS_ID"
        or all(isinstance(entry, str) for entry in ids)
    )


def parse(text: str) -> Entries:
    """Parse CUDA_VISIBLE_DEVICES as torch 2.13 does.

    Numbers are parsed as by strtoul ("2ampere" is 2). The first entry of another kind than the first
    one ends the list, and a repeated entry empties it.
    """
    prefix = next((prefix for prefix in _UUID_PREFIXES if text.startswith(prefix)), "")
    read: list[int | str] = []
    for entry in text.split(","):
        name = _parse_entry(entry, prefix)
        if name is None:
            wrong = (
                _WRONG_KIND[prefix]
                if entry.startswith(_UUID_PREFIXES)
                else "neither number nor UUID"
            )
            return Entries(tuple(read), f"{_VARIABLE}={text}: {entry!r} is {wrong}; {_ENDS}")
        if name in read:
            return Entries((), f"{_VARIABLE}={text}: {entry!r} is listed twice; {_EMPTIES}")
        read.append(name)
    return Entries(tuple(read), "")


def _parse_entry(entry: str, prefix: str) -> int | str | None:
    if prefix:
        return entry if entry.startswith(prefix) else None
    found = re.match("[+-]?[0-9]+", entry.strip())
    # Python raises an error for thousands of digits.
    number = int(found.group()) if found and len(found.group()) <= _MAX_DIGITS else -1
    return number if number >= 0 else None


def _find(entry: int | str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    wholes = _whole_gpus(gpus)
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
    # Only NVML lists slices. Without it, CUDA still accepts their UUIDs. The GPU of a slice is then the
    # one in its legacy name, or the only GPU.
    uuid = entry.removeprefix("MIG-").partition("/")[0]
    whole = _only(gpu for gpu in gpus if len(gpus) == 1 or gpu.uuid == uuid)
    return whole and replace(whole, uuid=entry, parent=whole.uuid or whole.device)


def _whole_gpus(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in gpus if not gpu.parent)


def _only(gpus: Iterable[Gpu]) -> Gpu | None:
    found = list(gpus)
    return found[0] if len(found) == 1 else None


def _slices_warning(gpus: tuple[Gpu, ...], chosen: Sequence[Gpu]) -> str:
    """Return a warning about selected GPUs that are split: only one of all their slices is used."""
    uuids = {gpu.uuid for gpu in chosen}
    slices = [gpu for gpu in gpus if gpu.parent and gpu.parent in uuids]
    if len(slices) <= 1:
        return ""
    numbers = {gpu.index for gpu in slices}
    split = ",".join(number_ranges(numbers))
    are = f"GPU {split} is" if len(numbers) == 1 else f"GPUs {split} are"
    names = [_short(gpu.uuid, gpus) for gpu in slices]
    while len(",".join(names)) > _MAX_NAMES_LENGTH:
        names.pop()
    each, rest = "each", ""
    if len(names) < len(slices):
        each, rest = f"{len(names)} of them", " (clusterrun topo lists all)"
    return (
        f"{are} split into {len(slices)} MIG slices, of which CUDA shows each process only one; for"
        f" a worker on {each}: --devices {','.join(names)} --virtual-local-rank{rest}"
    )


def _short(uuid: str, gpus: tuple[Gpu, ...]) -> str:
    """Return the shortest prefix of a UUID that no other GPU has, ignoring case as --devices does."""
    others = [gpu.uuid.lower() for gpu in gpus if gpu.uuid != uuid]
    for length in range(_MIN_UUID_LENGTH, len(uuid)):
        if not any(other.startswith(uuid[:length].lower()) for other in others):
            return uuid[:length]
    return uuid
