"""When each worker's script failed: before its threads, atexit and the interpreter's end.

A worker that runs its script in place has no descriptor to report by, so it notes the time in
memory that it shares with the server. A worker that has executed its program notes nothing.
"""

from __future__ import annotations

import mmap
import os
import time

_BYTES_OF_TIME = 8
_BYTES = 16
_MAX_WORKERS = 256
"""Failures of further ones are dated by their exit."""


class ScriptEnd:
    """One worker's note: when its script failed, and with which exit code."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        """Take the shared memory, and this note's place in it."""
        self._memory = memory
        self._bytes = slice(place * _BYTES, (place + 1) * _BYTES)
        self._pid = 0

    def belong_to_this_process(self) -> None:
        """Let only this process note an end: children that the script forks have ends of their own."""
        self._pid = os.getpid()

    def note(self, code: int) -> None:
        """Note that the script of this process ends now, with exit code ``code``."""
        if os.getpid() == self._pid and self._bytes.stop <= len(self._memory):
            time_noted = time.monotonic_ns().to_bytes(_BYTES_OF_TIME, "little")
            code_noted = code.to_bytes(_BYTES - _BYTES_OF_TIME, "little")
            self._memory[self._bytes] = time_noted + code_noted

    def clear(self) -> None:
        """Forget what the worker of an earlier attempt has noted."""
        if self._bytes.stop <= len(self._memory):
            self._memory[self._bytes] = bytes(_BYTES)

    def read(self) -> tuple[float, int]:
        """Return the seconds, of the machine's monotonic clock, and the code; 0.0 and 0 if unknown."""
        noted = self._memory[self._bytes]
        nanoseconds = int.from_bytes(noted[:_BYTES_OF_TIME], "little")
        return nanoseconds / 1e9, int.from_bytes(noted[_BYTES_OF_TIME:], "little")

    @property
    def is_failure(self) -> bool:
        """Whether the script is known to have failed."""
        return self.read()[1] != 0


class ScriptEnds:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        """Map the memory, before anybody is forked."""
        self._memory = mmap.mmap(-1, _MAX_WORKERS * _BYTES)

    def of(self, local_rank: int) -> ScriptEnd:
        """Return the note of the worker with ``local_rank``."""
        return ScriptEnd(self._memory, local_rank)
