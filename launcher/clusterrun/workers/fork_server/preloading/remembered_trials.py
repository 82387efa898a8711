"""Which imports are left to the workers, remembered for a week: to find out takes an attempt more.

A module that reads the rank when it is imported ends an attempt to preload; the imports before it are
repeated. Why workers are spawned is not remembered: a variable set meanwhile may change it.
One small file each, in ``$XDG_CACHE_HOME/clusterrun`` or ``~/.cache/clusterrun``. A new package,
another interpreter or other imports make another attempt.
"""

from __future__ import annotations

import binascii
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .leading_imports import Import

SECONDS_TO_REMEMBER = 7 * 24 * 3600.0


class RememberedTrial:
    """How many of these modules can be preloaded in this environment, if that is known."""

    def __init__(
        self, imports: Sequence[Import], forbidden: Iterable[str], environ: Mapping[str, str]
    ) -> None:
        base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
        self._folder = os.path.join(base, "clusterrun") if os.path.isabs(base) else ""
        self._key = _key(imports, forbidden)
        name = f"preload-{binascii.crc32(os.fsencode(self._key)):08x}"
        self.path = os.path.join(self._folder, name)

    def read(self) -> dict[str, Any] | None:
        """Return the finding of the attempt; None if it is unknown or too old."""
        try:
            if not self._folder or time.time() - os.stat(self.path).st_mtime > SECONDS_TO_REMEMBER:
                return None
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                key, imported, why = file.read().rstrip("\n").split("\n", 2)
            if key != self._key:
                return None
            return {"kind": "variable_read", "imported": int(imported), "why": why}
        except (OSError, ValueError):
            return None

    def write(self, finding: Mapping[str, Any]) -> None:
        """Remember a finding, if the folder can be written."""
        if not self._folder:
            return
        aside = f"{self.path}.{os.getpid()}"
        lines = (self._key, finding["imported"], finding["why"])
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(aside, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write("".join(f"{line}\n" for line in lines))
            os.replace(aside, self.path)
        except (OSError, ValueError):
            pass  # a full disk, no home, a path that can't be encoded: the next job tries again


def _key(imports: Sequence[Import], forbidden: Iterable[str]) -> str:
    installed = []
    for folder in sys.path:
        try:
            # Changes whenever something is installed there.
            installed.append(
                f"{folder}={os.stat(folder).st_mtime_ns}" if "-packages" in folder else folder
            )
        except OSError:
            continue
    wanted = [".".join((one.name, *one.names)) for one in imports]
    machine = os.uname().nodename
    version = sys.version.replace("\n", " ")
    return " ".join([machine, sys.executable, version, *wanted, *sorted(forbidden), *installed])
