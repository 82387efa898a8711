"""Captured machines as .tar.xz, .tar.gz, .tar.bz2 or .tar: read without trust, written reproducibly."""

import gzip
import io
import tarfile
import zlib
from importlib import import_module
from pathlib import Path
from types import ModuleType

from clusterrun.machine.captures.archive import Archive, Entries, Entry

MAX_SIZE = 256 * 2**20
"""Bytes of an archive, packed or unpacked; a large machine with everything in /sys has 10 MB."""

MAX_ENTRIES = 500_000

MAX_FILE = 16 * 2**20
"""Bytes of one file in it: /proc/cpuinfo has two thousand for each CPU, and no file is longer."""

_MODULES = {b"\xfd7zXZ\x00": "lzma", b"BZh": "bz2", b"\x1f\x8b": "gzip"}
"""The module that unpacks a file, by its first bytes."""


def read_archive(path: Path, max_size: int = MAX_SIZE) -> Archive:
    """Return the machine in an archive, whose root may be a folder inside.

    Nothing is unpacked to the disk: tarfile's filters for that would drop modes, which tell what
    the captured process could open, and absolute links, which other capturing tools write.

    Raises:
        OSError: the file can't be read.
        ValueError: it is not such an archive, it is damaged, or it is larger than any machine.

    """
    with path.open("rb") as file:
        packed = file.read(max_size + 1)
    content = _unpacked(packed, max_size)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            return Archive(_without_top(_entries(archive, max_size)))
    # RecursionError: headers that announce further headers are read by nested calls.
    except (tarfile.TarError, RecursionError) as error:
        raise ValueError(f"{error}") from None


def _unpacked(packed: bytes, max_size: int) -> bytes:
    """Return the tar in what may be compressed; never holds more than is allowed."""
    name = next((name for start, name in _MODULES.items() if packed.startswith(start)), None)
    content = packed if name is None else _decompressed(packed, _module(name), max_size)
    if len(content) > max_size:
        raise ValueError(f"it has more than {max_size >> 20} MiB in it")
    return content


def _decompressed(packed: bytes, module: ModuleType, max_size: int) -> bytes:
    lzma_error = getattr(module, "LZMAError", OSError)
    try:
        with module.open(io.BytesIO(packed)) as file:
            return bytes(file.read(max_size + 1))
    except (OSError, EOFError, zlib.error, lzma_error) as error:
        raise ValueError(f"{error}") from None
    except MemoryError:
        raise ValueError("unpacking it takes more memory than there is") from None


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"this Python was built without {name}, which the file needs") from None


def _entries(archive: tarfile.TarFile, max_size: int) -> Entries:
    entries: dict[str, Entry | None] = {}
    left = max_size
    for number, member in enumerate(archive):
        left -= member.size
        if left < 0 or not 0 <= member.size <= MAX_FILE or number > MAX_ENTRIES:
            raise ValueError("it has more in it than any machine")
        path = _inside(member.name)
        if path:
            entries[path] = _entry(archive, member, entries)
    return entries


def _inside(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{name!r} leads out of it")
    return "/".join(parts)


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, before: Entries) -> Entry | None:
    if member.isdir():
        return None
    if member.issym():
        return Entry(target=member.linkname or ".")
    if member.islnk():
        return before.get(_inside(member.linkname)) or Entry(mode=0)
    file = archive.extractfile(member) if member.isreg() else None
    return Entry(file.read() if file else b"", member.mode)


def _without_top(entries: Entries) -> Entries:
    """Return what is below the one folder that holds everything, if its name is not a machine's."""
    tops = {path.partition("/")[0] for path in entries}
    if len(tops) != 1 or tops & {"sys", "proc"}:
        return entries
    length = len(tops.pop()) + 1
    return {path[length:]: entry for path, entry in entries.items() if path[length:]}


def pack(top: str, entries: Entries) -> bytes:
    """Return a tar of these files and folders below the folder ``top``; the same for the same."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(entries.items()):
            content = io.BytesIO(entry.content) if entry else None
            archive.addfile(_member(f"{top}/{path}", entry), content)
    return buffer.getvalue()


def compress(content: bytes, name: str) -> bytes:
    """Return the tar in the form that the ``name`` of its file ends with.

    Raises:
        ValueError: this Python can't write that.

    """
    if name.endswith(".xz"):
        return bytes(_module("lzma").compress(content))
    return gzip.compress(content, mtime=0)


def _member(path: str, entry: Entry | None) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    if entry is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    elif entry.target:
        member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, entry.target
    else:
        member.size, member.mode = len(entry.content), entry.mode
    return member
