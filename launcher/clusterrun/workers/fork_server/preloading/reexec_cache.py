"""Remembers which scripts change, before they import torch, what its import reads.

One small file for each script, in the user's folder for such things (XDG_CACHE_HOME, or ~/.cache). It
counts as long as the script and torch stay as they are; where it can't be written, nothing is remembered.
"""

from __future__ import annotations

import os

from .module_files import file_of
from .torch_variables import TORCH

FOLDER = "clusterrun/imports-torch-itself"
_LONGEST = 200
"""Bytes of a file's name: the end of the script's path."""


class ReexecCache:
    """What is remembered of one script."""

    def __init__(self, script: str) -> None:
        """``script`` is its file."""
        home = os.environ.get("HOME", "")
        caches = os.environ.get("XDG_CACHE_HOME") or (home and os.path.join(home, ".cache"))
        self.file = ""
        # A relative folder is to be ignored (XDG Base Directory Specification).
        if os.path.isabs(caches) and script:
            path = os.path.realpath(script)
            name = os.fsdecode(os.fsencode(path.replace("/", "%"))[-_LONGEST:])
            self.file = os.path.join(caches, FOLDER, name)
            self._stamp = "\n".join([path, _stamp_of(path), _stamp_of(file_of(TORCH))])

    def why(self) -> str:
        """Return what it changes, or ""."""
        try:
            with open(self.file, encoding="utf-8", errors="surrogateescape") as file:
                why, _, stamp = file.read().partition("\n")
        except OSError:
            return ""
        return why if stamp == self._stamp else ""

    def note(self, why: str) -> bool:
        """Remember what it changes; return False if another rank has done so already."""
        new = f"{self.file[:-1]}{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(self.file), exist_ok=True)
            if not self.why() and os.path.exists(self.file):
                os.unlink(self.file)
            with open(new, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{why}\n{self._stamp}")
            try:
                os.link(new, self.file)
            finally:
                os.unlink(new)
        except FileExistsError:
            return False
        except OSError:
            pass
        return True


def _stamp_of(path: str) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"
