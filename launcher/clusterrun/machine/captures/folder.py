"""Files below a folder: ``/`` of this machine, or a folder with a captured machine."""

import os
from collections.abc import Callable
from pathlib import Path

ANSWERS = "answers"
"""Folder of a captured machine with the answers of its drivers, a file for each question."""

_TO_READ, _TO_WRITE = 0o444, 0o200
"""Modes of a captured file that the captured process could read, and write; root can read any file."""


class Folder:
    """The ``Files`` of a folder."""

    def __init__(self, root: Path) -> None:
        """Take the ``root``: ``/``, or the folder that holds a captured ``sys`` and ``proc``."""
        self._root = os.path.realpath(root)
        self._prefix = self._root.rstrip("/") + "/"

    @property
    def is_live(self) -> bool:
        return self._root == "/"

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

    def answer(self, question: str, ask: Callable[[], str]) -> str:
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
