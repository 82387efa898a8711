"""When each worker's script was over: before its threads, atexit and C's part of the end.

Noted in memory that the workers share with the server, as a worker in place has no descriptor to
tell it by. A worker that has executed its program notes nothing.
"""

from __future__ import annotations

import mmap
import time

_BYTES_OF_TIME = 8
_BYTES = 16
_MOST_WORKERS = 256
"""Further ones are dated by their exit."""


class Departure:
    """One worker's note: when its script was over, and with which exit code."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        """Take the memory that is shared, and where this note is in it."""
        self._memory = memory
        self._bytes = slice(place * _BYTES, (place + 1) * _BYTES)

    def note(self, code: int) -> None:
        """Note that the script is over now, unless that is noted already."""
        if self._bytes.stop <= len(self._memory) and not self.read()[0]:
            time_noted = time.monotonic_ns().to_bytes(_BYTES_OF_TIME, "little")
            code_noted = max(0, code).to_bytes(_BYTES - _BYTES_OF_TIME, "little")
            self._memory[self._bytes] = time_noted + code_noted

    def clear(self) -> None:
        """Forget what was noted by the worker of an attempt before."""
        if self._bytes.stop <= len(self._memory):
            self._memory[self._bytes] = bytes(_BYTES)

    def read(self) -> tuple[float, int]:
        """Return the seconds, of the machine's monotonic clock, and the code; 0.0 if none are noted."""
        noted = self._memory[self._bytes]
        nanoseconds = int.from_bytes(noted[:_BYTES_OF_TIME], "little")
        return nanoseconds / 1e9, int.from_bytes(noted[_BYTES_OF_TIME:], "little")


class Departures:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        """Set up the memory, before anybody is forked."""
        self._memory = mmap.mmap(-1, _MOST_WORKERS * _BYTES)

    def of(self, local_rank: int) -> Departure:
        """Return the note of the worker with ``local_rank``."""
        return Departure(self._memory, local_rank)
