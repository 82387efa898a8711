"""Files below a root: of this machine, or of a captured one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

ANSWERS = "answers"
"""Folder of a captured machine with the answers of its drivers, a file for each question."""

_TO_READ, _TO_WRITE = 0o444, 0o200
"""Bits of a mode that let the captured process read or write a file; root can read any file."""


class Files(Protocol):
    """Files below a root. Paths are relative to it: ``sys/devices/system/cpu/online``."""

    is_live: bool
    """Whether they are this machine's, not captured."""

    def read(self, path: str) -> bytes:
        """Return the content of the file; OSError if it can't be read."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; OSError if it can't be read."""

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened: a container's device rules show only then."""

    def may_use(self, path: str) -> bool:
        """Return whether the file's mode lets us read and write it, without opening it.

        Opening the file of a GPU may wake it up, and makes us a user of it.
        """

    def link(self, path: str) -> str:
        """Return where the link at ``path`` points, as it is written; OSError if it is no link."""

    def real(self, path: str) -> str:
        """Return ``path`` with every link in it followed; OSError if one leads out of the root."""

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return the answer of this machine, by ``ask``, or the captured answer.

        Args:
            question: the name of the file that keeps the answer in a capture.
            ask: called on this machine; returns "" if there is no answer.

        """
        if self.is_live:
            return ask()
        try:
            return self.read(f"{ANSWERS}/{question}").decode(errors="replace")
        except OSError:
            return ""


class Folder(Files):
    """Files below ``/`` of this machine, or below a folder with a captured machine."""

    def __init__(self, root: Path) -> None:
        """Take the ``root``: ``/``, or the folder that holds a captured ``sys`` and ``proc``."""
        self._prefix = os.path.realpath(root).rstrip("/") + "/"
        self.is_live = self._prefix == "/"

    def read(self, path: str) -> bytes:
        descriptor = self._open(path)
        try:
            content = b""
            while chunk := os.read(descriptor, 65536):
                content += chunk
            return content
        finally:
            os.close(descriptor)

    def names(self, path: str) -> list[str]:
        with os.scandir(self._prefix + path) as entries:
            return [entry.name for entry in entries]

    def exists(self, path: str) -> bool:
        return os.access(self._prefix + path, os.F_OK)

    def can_open(self, path: str) -> bool:
        try:
            os.close(self._open(path, os.O_NONBLOCK))
        except OSError:
            return False
        return True

    def may_use(self, path: str) -> bool:
        return os.access(self._prefix + path, os.R_OK | os.W_OK) and (
            self.is_live or bool(Path(self._prefix, path).stat().st_mode & _TO_WRITE)
        )

    def link(self, path: str) -> str:
        return str(Path(self._prefix, path).readlink())

    def real(self, path: str) -> str:
        real = os.path.realpath(self._prefix + path)
        if not real.startswith(self._prefix):
            raise FileNotFoundError(path)
        return real[len(self._prefix) :]

    def _open(self, path: str, flags: int = 0) -> int:
        # Hundreds of files of a few bytes each: plain descriptors halve the time of open().
        descriptor = os.open(self._prefix + path, os.O_RDONLY | os.O_CLOEXEC | flags)
        if not self.is_live and not os.fstat(descriptor).st_mode & _TO_READ:
            os.close(descriptor)
            raise PermissionError(path)
        return descriptor
