"""Trials that failed, remembered for a week: to import what can't be forked takes seconds.

One small file each, in ``$XDG_CACHE_HOME/clusterrun`` or ``~/.cache/clusterrun``. What is installed
since, another interpreter or other imports make another trial.
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
    """What came of importing these modules in this environment, if not all went well."""

    def __init__(
        self, imports: Sequence[Import], unsettled: Iterable[str], environ: Mapping[str, str]
    ) -> None:
        """Take what is to be imported, the variables that may not be used, and the environment."""
        base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
        self._folder = os.path.join(base, "clusterrun") if os.path.isabs(base) else ""
        self._key = _key(imports, unsettled)
        name = f"spawn-{binascii.crc32(os.fsencode(self._key)):08x}"
        self.path = os.path.join(self._folder, name)

    def read(self) -> dict[str, Any] | None:
        """Return the verdict of the template; None if it is not known or long ago."""
        try:
            if not self._folder or time.time() - os.stat(self.path).st_mtime > SECONDS_TO_REMEMBER:
                return None
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                key, kind, complete, complaint, why = file.read().rstrip("\n").split("\n", 4)
            if key != self._key:
                return None
            found = {"kind": kind, "complete": int(complete), "complaint": complaint == "True"}
        except (OSError, ValueError):
            return None
        return {**found, "why": why}

    def write(self, verdict: Mapping[str, Any]) -> None:
        """Remember a verdict, if there is a place for that."""
        if not self._folder:
            return
        aside = f"{self.path}.{os.getpid()}"
        complete, complaint = verdict.get("complete", 0), verdict["complaint"]
        lines = (self._key, verdict["kind"], complete, complaint, verdict["why"])
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            with open(aside, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write("".join(f"{line}\n" for line in lines))
            os.replace(aside, self.path)
        except (OSError, ValueError):
            pass  # a full disk, no home, letters that can't be written: the next job tries again


def _key(imports: Sequence[Import], unsettled: Iterable[str]) -> str:
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
    return " ".join([machine, sys.executable, version, *wanted, *sorted(unsettled), *installed])
