"""The value of ``--numa-map``: entries, or a file of them."""

import re
from pathlib import Path

from clusterrun.domain.job import MappedGpu
from clusterrun.errors import UsageError
from clusterrun.sources.options.values.numbers import cpu_list
from clusterrun.sources.options.values.paths import path

_HINT = "write GPU=CPUS or GPU=node N, such as 0=node 1,1=0-3,8 or 0000:17:00.0=node 0, or a file"
_NODE = re.compile(r"node ?([0-9]{1,5})")


def numa_map(text: str) -> tuple[MappedGpu, ...]:
    """Return the entries ``GPU=CPUS`` and ``GPU=node N`` of a text, or of the file that it names.

    Commas separate entries, in a file also line breaks; a ``#`` begins a comment.
    """
    if "=" not in text:
        return _entries(_content(path(text)), f"in {text}: ")
    return _entries(text, "")


def _content(name: str) -> str:
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{name!r} cannot be read: {why}", _HINT) from None
    return ",".join(line.partition("#")[0].strip() for line in lines)


def _entries(text: str, where: str) -> tuple[MappedGpu, ...]:
    pieces = [piece.strip() for piece in re.split(r"[,\n]", text) if piece.strip()]
    if not pieces:
        raise UsageError(f"{where}there are no entries", _HINT)
    if "=" not in pieces[0]:
        raise UsageError(f"{where}{pieces[0]!r} names no GPU", _HINT)
    found: dict[str, MappedGpu] = {}
    # Lists of CPUs have commas, too.
    for part in re.split(r",(?=[^,]*=)", ",".join(pieces)):
        entry = _entry(part, where)
        if entry.gpu in found:
            raise UsageError(f"{where}GPU {entry.gpu} is listed twice", "leave one out")
        found[entry.gpu] = entry
    return tuple(found.values())


def _entry(text: str, where: str) -> MappedGpu:
    gpu, _, place = (part.strip() for part in text.partition("="))
    if not gpu:
        raise UsageError(f"{where}{text!r} has no GPU before the =", _HINT)
    node = _NODE.fullmatch(place)
    if node:
        return MappedGpu(gpu, int(node[1]))
    try:
        return MappedGpu(gpu, cpu_list(place))
    except UsageError:
        raise UsageError(f"{where}{place!r} is neither a list of CPUs nor node N", _HINT) from None
