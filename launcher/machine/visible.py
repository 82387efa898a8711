"""CUDA_VISIBLE_DEVICES, read as CUDA and torch read it: which GPUs the workers see, in which order."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.domain.machine import Gpu

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NOTHING_ON_PURPOSE = ("", "-1", "NoDevFiles")
"""What people and tools write to hide every GPU."""
_ENDS = "CUDA ends the list there"
_EMPTIES = "CUDA then shows none"


class Entries(NamedTuple):
    """The entries that count: all numbers or all ids (``GPU-...``, ``MIG-...``)."""

    ids: tuple[int, ...] | tuple[str, ...]
    remark: str
    """Which entry cut the list short; "" if none did."""


class Choice(NamedTuple):
    """Which GPUs the entries mean, as indices of the vendor's list."""

    indices: tuple[int, ...]
    remark: str


class Visible(NamedTuple):
    """The GPUs that are left, in the order of the workers."""

    gpus: tuple[Gpu, ...]
    origin: str
    """The variable with its value, or the source that listed the GPUs."""
    remark: str


def select_visible(gpus: Sequence[Gpu], environ: Mapping[str, str], source: str) -> Visible:
    """Return which of ``gpus`` the job's environment leaves, and in which order.

    AMD's ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, of which CUDA_VISIBLE_DEVICES is an alias,
    are not read yet.
    """
    text = environ.get(_VARIABLE)
    if text is None:
        return Visible(tuple(gpus), source, "")
    entries = parse(text)
    chosen = choose(entries, [gpu.uuid for gpu in gpus])
    remark = chosen.remark
    if text in _NOTHING_ON_PURPOSE:
        remark = ""
    elif not gpus:
        remark = f"{_VARIABLE}={text}, but there is no GPU that this process may open"
    picked = tuple(gpus[index] for index in chosen.indices)
    return Visible(picked, f"{_VARIABLE}={text}", remark)


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
        number = _leading_number(entry.strip())
        if number in numbers:
            return Entries((), _twice(entry, text))
        if number is None:
            return Entries(tuple(numbers), _cut(entry, text))
        numbers.append(number)
    return Entries(tuple(numbers), "")


def _leading_number(entry: str) -> int | None:
    digits = entry.removeprefix("+")
    length = next((at for at, char in enumerate(digits) if char not in "0123456789"), len(digits))
    return int(digits[:length]) if length else None


def choose(entries: Entries, uuids: Sequence[str]) -> Choice:
    """Return which of the GPUs with these ``uuids`` the entries mean.

    An id may be the beginning of a UUID if it is of one GPU only. The first entry that means no
    GPU ends the list; two that mean the same one empty it.
    """
    indices: list[int] = []
    for entry in entries.ids:
        index = _index(entry, uuids)
        if index is None:
            return Choice(tuple(indices), f"{_VARIABLE}: {entry} is no GPU here; {_ENDS}")
        if index in indices:
            return Choice((), f"{_VARIABLE}: {entry} names a GPU twice; {_EMPTIES}")
        indices.append(index)
    return Choice(tuple(indices), entries.remark)


def _index(entry: int | str, uuids: Sequence[str]) -> int | None:
    if isinstance(entry, int):
        return entry if entry < len(uuids) else None
    matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _cut(entry: str, text: str) -> str:
    return f"{_VARIABLE}={text}: {entry!r} is neither number nor UUID; {_ENDS}"


def _twice(entry: str, text: str) -> str:
    return f"{_VARIABLE}={text}: {entry!r} is there twice; {_EMPTIES}"
