"""Caches which scripts change, before they import torch, what its import reads.

There is one small file for each script, in the user's cache folder (XDG_CACHE_HOME, or ~/.cache). It is valid
as long as the script and torch are unchanged. If it can't be written, nothing is cached.
"""

from __future__ import annotations

import os

from .module_files import file_of
from .torch_variables import TORCH

FOLDER = "clusterrun/imports-torch-itself"
_MAX_NAME = 200
"""Bytes of a file's name, which is the end of the script's path."""


class ReexecCache:
    """The entry of one script: why its workers had to execute their program again."""

    def __init__(self, script: str) -> None:
        """``script`` is its path, or "" if it is not known."""
        home = os.environ.get("HOME", "")
        caches = os.environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
        self.file = ""
        # A relative folder must be ignored (XDG Base Directory Specification).
        if os.path.isabs(caches) and script:
            path = os.path.realpath(script)
            name = os.fsdecode(os.fsencode(path.replace("/", "%"))[-_MAX_NAME:])
            self.file = os.path.join(caches, FOLDER, name)
            self._stamp = "\n".join([path, _stamp_of(path), _stamp_of(file_of(TORCH))])

    def why(self) -> str | None:
        """Return what the script changes, if there is a valid entry."""
        try:
            with open(self.file, encoding="utf-8", errors="surrogateescape") as file:
                return self._reason_in(file.read())
        except OSError:
            return None

    def store(self, why: str) -> bool:
        """Store what the script changes; return False if another rank already has."""
        # Not at the top: the fork server's modules are those of every script.
        from fcntl import LOCK_EX, flock

        try:
            os.makedirs(os.path.dirname(self.file), exist_ok=True)
            with open(self.file, "a+", encoding="utf-8", errors="surrogateescape") as file:
                # Of ranks that look at the same time, only one may find no valid entry.
                try:
                    flock(file, LOCK_EX)
                except OSError:  # a file system without locks
                    pass
                file.seek(0)
                if self._reason_in(file.read()) is not None:
                    return False
                file.truncate(0)
                file.write(f"{why}\n{self._stamp}")
        except OSError:
            pass
        return True

    def _reason_in(self, entry: str) -> str | None:
        why, _, stamp = entry.partition("\n")
        return why if stamp == self._stamp else None


def _stamp_of(path: str | None) -> str:
    try:
        found = os.stat(path or "")
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"
