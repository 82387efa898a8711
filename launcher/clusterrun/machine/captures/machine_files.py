"""Where a machine's files are read from: a folder, an archive, or either with a note of what was read."""

from collections.abc import Callable
from typing import Protocol


class Files(Protocol):
    """Files below a root. Paths are relative to it: ``sys/devices/system/cpu/online``."""

    @property
    def is_live(self) -> bool:
        """Whether they are the running machine's, and not captured."""
        ...

    def read(self, path: str) -> bytes:
        """Return what the file says; OSError where it can't be read."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; OSError where it can't be read."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or directory."""
        ...

    def can_open(self, path: str) -> bool:
        """Return whether the file can be opened for reading."""
        ...

    def may_use(self, path: str) -> bool:
        """Return whether the file's mode lets us read and write it, without opening it."""
        ...

    def link(self, path: str) -> str:
        """Return where the link at ``path`` points, as it is written; OSError where it is none."""
        ...

    def real(self, path: str) -> str:
        """Return ``path`` with every link in it followed; OSError where one leads out of the root."""
        ...

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return the running machine's answer, by ``ask``, or what it was when it was captured."""
        ...
