"""Captured machines as .tar.xz, .tar.gz, .tar.bz2 or .tar: read with no trust, written to the same bytes."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

from clusterrun.machine.captures.archive import Archive, Entry

LARGEST = 256 * 2**20
"""Bytes of an archive, packed or unpacked; a large machine with everything in /sys has 10 MB."""

MOST_ENTRIES = 500_000

_XZ, _GZIP, _BZIP2 = b"\xfd7zXZ\x00", b"\x1f\x8b", b"BZh"
_MEMORY = 128 * 2**20
"""What unpacking may take beside the content: xz at its best takes 65 MB."""


def read_archive(path: Path, largest: int = LARGEST) -> Archive:
    """Return the machine in an archive, whose root may be a folder inside.

    Args:
        path: the file, never unpacked to any other.
        largest: bytes that it may have, packed or unpacked.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no such archive, it is damaged, or it is larger than any machine.

    """
    with path.open("rb") as file:
        packed = file.read(largest + 1)
    try:
        content = _unpacked(packed, largest)
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            found = _entries(archive, largest)
    # Headers that announce headers without end are read by as many calls in each other.
    except (tarfile.TarError, zlib.error, EOFError, RecursionError) as error:
        raise ValueError(f"{error}") from None
    return _without_top(*found)


class _Decompressor(Protocol):
    """What the three have in common here."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpacked(packed: bytes, largest: int) -> bytes:
    """Return the tar of what may be compressed, without ever holding more than is allowed."""
    content = b""
    while len(content) <= largest and (decompressor := _decompressor(packed)):
        content += decompressor.decompress(packed, largest + 1 - len(content))
        if not decompressor.eof and len(content) <= largest:
            raise ValueError("it is cut short")
        packed = decompressor.unused_data
    content = content or packed
    if len(content) > largest:
        raise ValueError(f"it has more than {largest >> 20} MiB in it")
    return content


def _decompressor(packed: bytes) -> _Decompressor | None:
    if packed.startswith(_XZ):
        lzma = _lzma()
        return _Checked(lzma.LZMADecompressor(memlimit=_MEMORY), lzma.LZMAError)
    if packed.startswith(_BZIP2):
        return _Checked(_module("bz2", ".bz2").BZ2Decompressor(), OSError)
    if packed.startswith(_GZIP):
        return zlib.decompressobj(wbits=31)
    return None


class _Checked:
    """A decompressor whose complaints are a ``ValueError``."""

    def __init__(self, decompressor: _Decompressor, error: type[Exception]) -> None:
        self._decompressor = decompressor
        self._error = error

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    @property
    def unused_data(self) -> bytes:
        return self._decompressor.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        try:
            return self._decompressor.decompress(data, max_length)
        except self._error as error:
            raise ValueError(f"{error}") from None


def _lzma() -> ModuleType:
    return _module("lzma", ".xz")


def _module(name: str, ending: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        # A Python that somebody built may be without it.
        raise ValueError(f"this Python was built without {name}, which {ending} needs") from None


def _entries(archive: tarfile.TarFile, largest: int) -> tuple[dict[str, Entry], set[str]]:
    entries: dict[str, Entry] = {}
    folders: set[str] = set()
    left = largest
    for number, member in enumerate(archive):
        left -= member.size
        if left < 0 or member.size < 0 or number > MOST_ENTRIES:
            raise ValueError("it has more in it than any machine")
        path = _inside(member.name)
        if member.isdir():
            folders.add(path)
        elif path:
            entries[path] = _entry(archive, member, entries)
    return entries, folders


def _inside(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError(f"{name!r} leads out of it")
    return "/".join(parts)


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo, before: Mapping[str, Entry]) -> Entry:
    if member.issym():
        return Entry(target=member.linkname or ".")
    if member.islnk():
        return before.get(_inside(member.linkname), Entry(mode=0))
    file = archive.extractfile(member) if member.isreg() else None
    return Entry(file.read() if file else b"", member.mode)


def _without_top(entries: Mapping[str, Entry], folders: Iterable[str]) -> Archive:
    """Return the archive, from the one folder that all is in where its name is not a machine's."""
    tops = {path.partition("/")[0] for path in (*entries, *folders) if path}
    if len(tops) != 1 or tops & {"sys", "proc"}:
        return Archive(entries, folders)
    length = len(tops.pop()) + 1
    return Archive(
        {path[length:]: entry for path, entry in entries.items() if path[length:]},
        {path[length:] for path in folders},
    )


def pack(top: str, entries: Mapping[str, Entry], folders: Iterable[str]) -> bytes:
    """Return a tar of these files and folders below the folder ``top``; the same for the same."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted({*entries, *folders}):
            entry = entries.get(path)
            member = _member(f"{top}/{path}", entry)
            archive.addfile(member, io.BytesIO(entry.content) if entry else None)
    return buffer.getvalue()


def compress(content: bytes, name: str) -> bytes:
    """Return the tar in the form that the ``name`` of its file ends with.

    Raises:
        ValueError: this Python can't write that.

    """
    if name.endswith(".xz"):
        return bytes(_lzma().compress(content))
    return gzip.compress(content, mtime=0)


def _member(path: str, entry: Entry | None) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    if entry is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    elif entry.target:
        member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, entry.target
    else:
        member.size = len(entry.content)
        member.mode = entry.mode
    return member
