"""A captured machine in an archive, which is never unpacked to the disk."""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clusterrun.machine.captures.folder import ANSWERS
from clusterrun.machine.captures.links import follow


class Entry(NamedTuple):
    """A captured file, or a link if ``target`` is set."""

    content: bytes = b""
    mode: int = 0o644
    """0 if the captured process could not open it."""
    target: str = ""

    @property
    def can_be_read(self) -> bool:
        return bool(self.mode & 0o444)

    @property
    def can_be_used(self) -> bool:
        return self.mode & 0o600 == 0o600


class Archive:
    """The ``Files`` of an archive."""

    def __init__(self, entries: Mapping[str, Entry], folders: Iterable[str]) -> None:
        """Take files by path, and folders; a folder with files in it may be left out."""
        self._entries = entries
        self._folders = _listings([*entries, *folders])
        for folder in folders:
            self._folders.setdefault(folder, set())

    @property
    def is_live(self) -> bool:
        return False

    def read(self, path: str) -> bytes:
        entry = self._entries.get(self.real(path))
        if entry is None or not entry.can_be_read:
            raise FileNotFoundError(errno.ENOENT, "not in the archive, or unreadable", path)
        return entry.content

    def names(self, path: str) -> list[str]:
        real = self.real(path)
        if real not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no folder in the archive", path)
        return list(self._folders[real])

    def exists(self, path: str) -> bool:
        try:
            real = self.real(path)
        except OSError:
            return False
        return real in self._entries or real in self._folders

    def can_open(self, path: str) -> bool:
        try:
            real = self.real(path)
        except OSError:
            return False
        entry = self._entries.get(real)
        return real in self._folders or (entry is not None and entry.can_be_read)

    def may_use(self, path: str) -> bool:
        try:
            entry = self._entries.get(self.real(path))
        except OSError:
            return False
        return entry is not None and entry.can_be_used

    def link(self, path: str) -> str:
        entry = self._entries.get(path)
        if entry is None or not entry.target:
            raise OSError(errno.EINVAL, "no link", path)
        return entry.target

    def real(self, path: str) -> str:
        return follow(path, self.link)

    def answer(self, question: str, _ask: Callable[[], str]) -> str:
        try:
            return self.read(f"{ANSWERS}/{question}").decode(errors="replace")
        except OSError:
            return ""


def _listings(paths: Iterable[str]) -> dict[str, set[str]]:
    """Return the names in each folder on the way to ``paths``."""
    listings: dict[str, set[str]] = {"": set()}
    for path in paths:
        left = path
        while left:
            left, _, name = left.rpartition("/")
            listed = listings.setdefault(left, set())
            if name in listed:
                break
            listed.add(name)
    return listings
