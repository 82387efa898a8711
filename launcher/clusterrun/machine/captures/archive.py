"""A captured machine in an archive, which is never unpacked to the disk."""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clusterrun.machine.captures.folder import ANSWERS

_TO_READ, _TO_USE, _FOLDER = 0o444, 0o600, 0o555
"""Bits of a mode that let the captured process read or use a file; the mode of any folder."""

MOST_LINKS = 40
"""As many as the kernel follows on one path."""


class Entry(NamedTuple):
    """A captured file, or a link if ``target`` is set."""

    content: bytes = b""
    mode: int = 0o644
    """0 if the captured process could not open it."""
    target: str = ""


class Archive:
    """The ``Files`` of an archive."""

    def __init__(self, entries: Mapping[str, Entry], folders: Iterable[str]) -> None:
        """Take files by path, and folders; a folder with files in it may be left out."""
        self._entries = entries
        self._folders = folders_around([*entries, *folders])
        for folder in folders:
            self._folders.setdefault(folder, set())

    @property
    def is_live(self) -> bool:
        return False

    def read(self, path: str) -> bytes:
        entry = self._entries.get(self.real(path))
        if entry is None or not entry.mode & _TO_READ:
            raise FileNotFoundError(errno.ENOENT, "not in the archive, or unreadable", path)
        return entry.content

    def names(self, path: str) -> list[str]:
        real = self.real(path)
        if real not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no folder in the archive", path)
        return list(self._folders[real])

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def can_open(self, path: str) -> bool:
        return bool((self._mode(path) or 0) & _TO_READ)

    def may_use(self, path: str) -> bool:
        return (self._mode(path) or 0) & _TO_USE == _TO_USE

    def _mode(self, path: str) -> int | None:
        """Return the mode of a file or folder; None if there is neither."""
        try:
            real = self.real(path)
        except OSError:
            return None
        if real in self._folders:
            return _FOLDER
        return self._entries[real].mode if real in self._entries else None

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


def folders_around(paths: Iterable[str]) -> dict[str, set[str]]:
    """Return the folders on the way to ``paths``, the root among them, with the names in each."""
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


def follow(path: str, link: Callable[[str], str]) -> str:
    """Return ``path`` with every link in it followed.

    Args:
        path: relative to the root.
        link: returns the target of the link at a path; OSError if it is no link.

    Raises:
        OSError: a link leads out of the root, or there are too many.

    """
    done: list[str] = []
    left = path.split("/")[::-1]
    links = 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if not done:
                raise FileNotFoundError(errno.ENOENT, "leads out of the root", path)
            done.pop()
            continue
        try:
            target = link("/".join((*done, part)))
        except OSError:
            done.append(part)
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, "too many links", path)
        if target.startswith("/"):
            done.clear()
        left.extend(target.split("/")[::-1])
    return "/".join(done)
