"""The interface by which a machine's files are read: from a folder, an archive or a recorder."""

from collections.abc import Callable
from typing import Protocol


class Files(Protocol):
    """Files below a root. Paths are relative to it: ``sys/devices/system/cpu/online``."""

    @property
    def is_live(self) -> bool:
        """Whether they are this machine's, not captured."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of the file; OSError if it can't be read."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in any order; OSError if it can't be read."""
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
        """Return where the link at ``path`` points, as it is written; OSError if it is no link."""
        ...

    def real(self, path: str) -> str:
        """Return ``path`` with every link in it followed; OSError if one leads out of the root."""
        ...

    def answer(self, question: str, ask: Callable[[], str]) -> str:
        """Return the answer of this machine, by ``ask``, or the captured answer."""
        ...
