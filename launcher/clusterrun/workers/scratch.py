"""The scratch folder, for files that workers write for the launcher: TORCHELASTIC_ERROR_FILE."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterrun.workers.time_limited import TimeLimited

SECONDS_TO_ANSWER = 1.0
"""How long a file system may take; after that, workers get no error files."""


class Scratch:
    """The folder of one job. Each call waits ``seconds`` at most, even if the file system hangs."""

    def __init__(self, path: Path, seconds: float = SECONDS_TO_ANSWER) -> None:
        self.path = path
        self._files = TimeLimited(seconds)
        self._owner: int | None = None

    def make(self, folders: Iterable[Path] = ()) -> bool:
        """Make the folder, and ``folders`` in it; return whether all exist.

        It is made again if a cleaner of temporary files has removed it.
        """
        return bool(self._files.run(partial(self._make, tuple(folders))))

    def remove(self) -> None:
        self._files.run(partial(remove_scratch, self.path))

    def _make(self, folders: Iterable[Path]) -> bool:
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                # A file server may map root to another user.
                self._owner = self.path.lstat().st_uid
            found = self.path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != self._owner:
                # Another user made it.
                return False
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return True


def remove_scratch(directory: Path) -> None:
    """Remove ``directory`` and all in it, as far as that is possible; links are not followed."""
    # fwalk calls itself for each level of folders.
    with suppress(OSError, RecursionError):
        for _, directories, files, descriptor in os.fwalk(directory, topdown=False):
            for name in (*files, *directories):
                _remove_entry(name, descriptor)
        directory.rmdir()


def _remove_entry(name: str, folder: int) -> None:
    with suppress(OSError):
        try:
            os.rmdir(name, dir_fd=folder)
        except NotADirectoryError:
            os.unlink(name, dir_fd=folder)
