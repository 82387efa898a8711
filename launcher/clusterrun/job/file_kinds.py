"""The kinds of files, without an exception for missing ones."""

import os
from enum import Enum
from pathlib import Path
from stat import S_ISDIR, S_ISREG

FOLDER_DELETED = "the current folder has been deleted"


class FileKind(Enum):
    """The kind of file at a path."""

    NOTHING = "nothing"
    """No file, or a file that this user may not see."""

    FILE = "file"
    """A regular file, or a link to one."""

    FOLDER = "folder"
    """A directory."""

    OTHER = "other"
    """A pipe, such as a shell's ``<(...)``, a device or a socket."""


def kind_of(path: str) -> FileKind:
    try:
        # Path.is_file() raises if this user may not search a folder of the path (Python 3.11).
        mode = Path(path).stat().st_mode if path else 0
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return FileKind.NOTHING
    if S_ISREG(mode):
        return FileKind.FILE
    if S_ISDIR(mode):
        return FileKind.FOLDER
    return FileKind.OTHER if path else FileKind.NOTHING


def is_executable(path: str) -> bool:
    """Return whether ``path`` is a file that this user may execute."""
    return kind_of(path) is FileKind.FILE and os.access(path, os.X_OK, effective_ids=True)


def is_current_folder_deleted() -> bool:
    """Return whether the working directory of this process no longer exists."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def names_in(folder: str, most: int, *, folders: bool = False, ending: str = "") -> list[str]:
    """Return the names of the files in ``folder``.

    Args:
        folder: the path of the folder.
        most: only so many entries are read, in the order of the file system.
        folders: include the names of folders.
        ending: only names with this suffix.

    """
    try:
        with os.scandir(folder) as entries:
            first = (entry for _, entry in zip(range(most), entries, strict=False))
            named = (entry for entry in first if entry.name.endswith(ending))
            return [entry.name for entry in named if folders or entry.is_file()]
    except OSError:
        return []
