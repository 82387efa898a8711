"""What a path leads to, asked without ever failing."""

import os
from enum import Enum
from pathlib import Path
from stat import S_ISDIR, S_ISREG


class FileKind(Enum):
    """What there is at a path."""

    NOTHING = "nothing"
    """No file, or none that this user may know of."""

    FILE = "file"
    """A regular file, by itself or through links."""

    FOLDER = "folder"
    """A directory."""

    OTHER = "other"
    """A pipe (as a shell's ``<(...)``), a device, a socket."""


def kind_of(path: str) -> FileKind:
    """Return what there is at ``path``."""
    try:
        # Path.is_file() and its kin raise where a folder on the way is closed to us (Python 3.11).
        mode = Path(path).stat().st_mode if path else 0
    except (OSError, ValueError):  # ValueError: a NUL, which no name of a file has
        return FileKind.NOTHING
    if S_ISREG(mode):
        return FileKind.FILE
    if S_ISDIR(mode):
        return FileKind.FOLDER
    return FileKind.OTHER if path else FileKind.NOTHING


def is_executable(path: str) -> bool:
    """Return whether ``path`` is a file that this user may execute."""
    return kind_of(path) is FileKind.FILE and os.access(path, os.X_OK)


def names_in(folder: str, most: int) -> list[str]:
    """Return the names of files in ``folder``, among its first ``most`` entries."""
    try:
        with os.scandir(folder) as entries:
            first = (entry for _, entry in zip(range(most), entries, strict=False))
            return [entry.name for entry in first if entry.is_file()]
    except OSError:
        return []
