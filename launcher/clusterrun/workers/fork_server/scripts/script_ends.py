"""When each worker's script failed: before its threads, exit handlers and the interpreter end.

A worker that runs its script in place has no descriptor to the server, so it notes the time in
memory that it shares with the server. A worker that has executed its program notes nothing.
"""

from __future__ import annotations

import mmap
import os
import time

_BYTES_OF_TIME = 8
_BYTES = 16
_MAX_WORKERS = 256
"""Failures of further workers are dated by their exit."""


class ScriptEnd:
    """One worker's note: when its script failed, and with which exit code."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._memory = memory
        self._bytes = slice(place * _BYTES, (place + 1) * _BYTES)
        self._pid = 0

    def belong_to_this_process(self) -> None:
        """Let only this process write the note, not children that the script forks."""
        self._pid = os.getpid()

    def note(self, code: int) -> None:
        if os.getpid() == self._pid and self._bytes.stop <= len(self._memory):
            time_noted = time.monotonic_ns().to_bytes(_BYTES_OF_TIME, "little")
            code_noted = code.to_bytes(_BYTES - _BYTES_OF_TIME, "little")
            self._memory[self._bytes] = time_noted + code_noted

    def clear(self) -> None:
        if self._bytes.stop <= len(self._memory):
            self._memory[self._bytes] = bytes(_BYTES)

    def read(self) -> tuple[float, int]:
        """Return the time by the monotonic clock, and the code; 0.0 and 0 if there is no note."""
        noted = self._memory[self._bytes]
        nanoseconds = int.from_bytes(noted[:_BYTES_OF_TIME], "little")
        return nanoseconds / 1e9, int.from_bytes(noted[_BYTES_OF_TIME:], "little")

    @property
    def is_failure(self) -> bool:
        return self.read()[1] != 0


class ScriptEnds:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        # Before the first fork: workers share it.
        self._memory = mmap.mmap(-1, _MAX_WORKERS * _BYTES)

    def of(self, local_rank: int) -> ScriptEnd:
        return ScriptEnd(self._memory, local_rank)
