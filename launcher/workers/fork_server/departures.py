"""When each worker's script was over: before its threads, atexit and C's part of the end.

Noted in memory that the workers share with the server, as a worker in place has no descriptor to
tell it by. A worker that has executed its program notes nothing.
"""

from __future__ import annotations

import mmap
import time

_BYTES = 8
_MOST_WORKERS = 4096 // _BYTES
"""Further ones are dated by their exit."""


class Departure:
    """One worker's note."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        """Take the memory that is shared, and where this note is in it."""
        self._memory = memory
        self._bytes = slice(place * _BYTES, (place + 1) * _BYTES)

    def note(self) -> None:
        """Note that the script is over now, unless that is noted already."""
        if self._bytes.stop <= len(self._memory) and not self.seconds():
            self._memory[self._bytes] = time.monotonic_ns().to_bytes(_BYTES, "little")

    def clear(self) -> None:
        """Forget what was noted by the worker of an attempt before."""
        if self._bytes.stop <= len(self._memory):
            self._memory[self._bytes] = bytes(_BYTES)

    def seconds(self) -> float:
        """Return the time, of the machine's monotonic clock; 0.0 if nothing is noted."""
        return int.from_bytes(self._memory[self._bytes], "little") / 1e9


class Departures:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        """Set up the memory, before anybody is forked."""
        self._memory = mmap.mmap(-1, _MOST_WORKERS * _BYTES)

    def of(self, local_rank: int) -> Departure:
        """Return the note of the worker with ``local_rank``."""
        return Departure(self._memory, local_rank)
