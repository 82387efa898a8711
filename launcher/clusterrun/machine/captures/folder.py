"""Files below a folder: ``/`` on the running machine, or where a captured machine was unpacked."""

import os
from collections.abc import Callable
from pathlib import Path

ANSWERS = "answers"
"""Folder of a captured machine for what its drivers answered, a file for each question."""

_TO_READ, _TO_WRITE = 0o444, 0o200
"""Modes of a captured file that its own process could read, and write: root can any."""


class Folder:
    """The ``Files`` of a folder."""

    def __init__(self, root: Path) -> None:
        """Take the ``root``: ``/``, or the folder that holds a captured ``sys`` and ``proc``."""
        self._root = os.path.realpath(root)
        self._prefix = self._root.rstrip("/") + "/"

    @property
    def is_live(self) -> bool:
        """Whether this is the running machine."""
        return self._root == "/"

    def read(self, path: str) -> bytes:
        """Return what the file says."""
        descriptor = self._open(path)
        try:
            return _read_all(descriptor)
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        with os.scandir(self._prefix + path) as entries:
            return [entry.name for entry in entries]

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        return os.access(self._prefix + path, os.F_OK)

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened for reading."""
        try:
            os.close(self._open(path, os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def may_use(self, path: str) -> bool:
        """Return whether the file's mode lets us read and write it."""
        return os.access(self._prefix + path, os.R_OK | os.W_OK) and (
            self.is_live or bool(Path(self._prefix, path).stat().st_mode & _TO_WRITE)
        )

    def link(self, path: str) -> str:
        """Return where the link at ``path`` points."""
        return str(Path(self._prefix, path).readlink())

    def real(self, path: str) -> str:
        """Return ``path`` with every link followed."""
        real = os.path.realpath(self._prefix + path)
        if not real.startswith(self._prefix):
            raise FileNotFoundError(path)
        return real[len(self._prefix) :]

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return the running machine's answer, or what it was when it was captured."""
        if self.is_live:
            return ask()
        try:
            return self.read(f"{ANSWERS}/{question}").decode(errors="replace")
        except OSError:
            return ""

    def _open(self, path: str, flags: int = 0) -> int:
        # Hundreds of files of a few bytes each: plain descriptors halve the time of open().
        descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC | flags)
        if not self.is_live and not os.fstat(descriptor).st_mode & _TO_READ:
            os.close(descriptor)
            raise PermissionError(path)
        return descriptor


def _read_all(descriptor: int) -> bytes:
    content = b""
    while chunk := os.read(descriptor, 65536):
        content += chunk
    return content
