"""A captured machine in an archive, read as it stands: nothing is unpacked, so nothing escapes."""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clusterrun.machine.captures.folder import ANSWERS
from clusterrun.machine.captures.links import follow


class Entry(NamedTuple):
    """A file that was captured; where ``target`` says so, a link to another."""

    content: bytes = b""
    mode: int = 0o644
    """Of what its own process could not open it is 0."""
    target: str = ""

    @property
    def can_be_read(self) -> bool:
        """Whether the process that captured it could open it."""
        return bool(self.mode & 0o444)

    @property
    def can_be_used(self) -> bool:
        """Whether that process could open it for writing too."""
        return self.mode & 0o600 == 0o600


class Archive:
    """The ``Files`` of an archive."""

    def __init__(self, entries: Mapping[str, Entry], folders: Iterable[str]) -> None:
        """Take files by path, and folders: those with something in them may be left out."""
        self._entries = entries
        self._folders = _listings([*entries, *folders])
        for folder in folders:
            self._folders.setdefault(folder, set())

    @property
    def is_live(self) -> bool:
        """An archive is never the running machine."""
        return False

    def read(self, path: str) -> bytes:
        """Return what the file says."""
        entry = self._entries.get(self.real(path))
        if entry is None or not entry.can_be_read:
            raise FileNotFoundError(errno.ENOENT, "not in the archive, or unreadable", path)
        return entry.content

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        real = self.real(path)
        if real not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no folder in the archive", path)
        return list(self._folders[real])

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        try:
            real = self.real(path)
        except OSError:
            return False
        return real in self._entries or real in self._folders

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened for reading."""
        try:
            real = self.real(path)
        except OSError:
            return False
        entry = self._entries.get(real)
        return real in self._folders or (entry is not None and entry.can_be_read)

    def may_use(self, path: str) -> bool:
        """Return whether the file's mode lets one read and write it."""
        try:
            entry = self._entries.get(self.real(path))
        except OSError:
            return False
        return entry is not None and entry.can_be_used

    def link(self, path: str) -> str:
        """Return where the link at ``path`` points."""
        entry = self._entries.get(path)
        if entry is None or not entry.target:
            raise OSError(errno.EINVAL, "no link", path)
        return entry.target

    def real(self, path: str) -> str:
        """Return ``path`` with every link followed."""
        return follow(path, self.link)

    def answer(self, question: str, _ask: Callable[[], str]) -> str:
        """Return what the captured machine answered."""
        try:
            return self.read(f"{ANSWERS}/{question}").decode(errors="replace")
        except OSError:
            return ""


def _listings(paths: Iterable[str]) -> dict[str, set[str]]:
    """Return what is in each folder on the way to ``paths``."""
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
