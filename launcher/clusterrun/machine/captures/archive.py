"""A captured machine in memory: the files of an archive, or recorded files."""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from clusterrun.machine.files import ANSWERS, Files

SEEN, READ, USED = 0, 0o444, 0o644
"""Modes of recorded files: only listed, readable, readable and writable."""

_TO_READ, _TO_USE, _FOLDER = 0o444, 0o600, 0o555
"""Bits of a mode that let the captured process read or use a file; the mode of any folder."""

MOST_LINKS = 40
"""The number of links that the kernel follows on one path."""

_KEPT_LINES = {
    # Process and user ids are private.
    "proc/self/status": ("Cpus_allowed", "Mems_allowed"),
    # So are other mounts. The mount of /proc is kept so that the file is not empty.
    "proc/self/mountinfo": (" - cgroup", " - proc "),
}
"""Files with private lines: only lines with one of these texts are kept."""


class Entry(NamedTuple):
    """A captured file, or a link if ``target`` is set."""

    content: bytes = b""
    mode: int = 0o644
    """0 if the captured process could not open it."""
    target: str = ""


Entries = Mapping[str, Entry | None]
"""Files by path; None is a folder, which may be left out if there is a file in it."""


class Archive(Files):
    """The files of an archive, which is never unpacked to the disk."""

    is_live = False

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._folders = _folders_around(entries)
        for path, entry in entries.items():
            if entry is None:
                self._folders.setdefault(path, set())

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
        entry = self._entries.get(real)
        return entry.mode if entry else None

    def link(self, path: str) -> str:
        entry = self._entries.get(path)
        if entry is None or not entry.target:
            raise OSError(errno.EINVAL, "no link", path)
        return entry.target

    def real(self, path: str) -> str:
        return _follow(path, self.link)


class Recorder(Files):
    """Records all that is read from other files, and what could not be read."""

    def __init__(self, files: Files) -> None:
        self.is_live = files.is_live
        self._files = files
        self._entries: dict[str, Entry] = {}
        self._folders: set[str] = set()

    def recorded(self) -> dict[str, Entry | None]:
        """Return all files that were read or listed, and the folders that were listed."""
        folders = self._folders | _folders_around(self._entries).keys()
        files = {path: entry for path, entry in self._entries.items() if path not in folders}
        return files | dict.fromkeys(self._folders)

    def read(self, path: str) -> bytes:
        try:
            content = self._files.read(path)
        except OSError:
            # A file may be opened, and yet not be read.
            self.can_open(path)
            raise
        self._keep(self._place(path), Entry(_kept(path, content), READ))
        return content

    def names(self, path: str) -> list[str]:
        names = self._files.names(path)
        place = self._place(path)
        self._folders.add(place)
        for name in names:
            try:
                self.link(f"{place}/{name}")
            except OSError:
                self._keep(f"{place}/{name}", Entry(mode=SEEN))
        return names

    def exists(self, path: str) -> bool:
        return self._allowed(path, SEEN, allowed=self._files.exists(path))

    def can_open(self, path: str) -> bool:
        return self._allowed(path, READ, allowed=self._files.can_open(path))

    def may_use(self, path: str) -> bool:
        return self._allowed(path, USED, allowed=self._files.may_use(path))

    def _allowed(self, path: str, mode: int, *, allowed: bool) -> bool:
        """Record whether the process may use a file in this way, and return it."""
        if allowed or self._files.exists(path):
            self._keep(self._place(path), Entry(mode=mode if allowed else SEEN))
        return allowed

    def link(self, path: str) -> str:
        target = self._files.link(path)
        self._entries[path] = Entry(target=target)
        return target

    def real(self, path: str) -> str:
        self._place(path)
        return self._files.real(path)

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        answer = self._files.answer(question, ask)
        if answer:
            self._entries[f"{ANSWERS}/{question}"] = Entry(answer.encode())
        return answer

    def _keep(self, place: str, entry: Entry) -> None:
        known = self._entries.get(place)
        if known is not None:
            entry = Entry(entry.content or known.content, entry.mode | known.mode, known.target)
        self._entries[place] = entry

    def _place(self, path: str) -> str:
        """Return the real path; the links on the way are recorded, too."""
        # The links of /proc/self lead to a process id, which is no fact of the machine.
        if not path.startswith("sys/"):
            return path
        try:
            return _follow(path, self.link)
        except OSError:
            return path


def _kept(path: str, content: bytes) -> bytes:
    kept = _KEPT_LINES.get(path)
    if kept is None:
        return content
    lines = content.decode(errors="replace").splitlines(keepends=True)
    return "".join(line for line in lines if any(word in line for word in kept)).encode()


def _folders_around(paths: Iterable[str]) -> dict[str, set[str]]:
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


def _follow(path: str, link: Callable[[str], str]) -> str:
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
