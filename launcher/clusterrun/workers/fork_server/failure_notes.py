"""How the server learns that a worker's script has failed while its process still runs.

A worker that runs its script in place writes to memory shared with the server. One that has executed
Python sends a signal (``startup/sitecustomize.py``), and the server writes the note: a temporary file might
hang, and a descriptor would be visible to the script.
"""

from __future__ import annotations

import _signal as signal
import mmap
import os
import struct
import time

VARIABLE = "CLUSTERRUN_FAILURE_NOTES"
"""``SERVER_PID:SIGNAL``, for ``startup/sitecustomize.py``, which removes the variable."""

SIGNAL = signal.SIGRTMIN + 3
"""Real-time signals are queued, with the sender's pid. The server blocks it; a SIGCHLD wakes the server."""


def failed_since_last_call() -> list[tuple[int, int]]:
    """Return pid and time (``time.monotonic_ns``) of each process that has signalled a failure.

    Any process of this user can send the signal, but only for itself: the kernel fills in the pid.
    """
    notes: list[tuple[int, int]] = []
    while (note := signal.sigtimedwait([SIGNAL], 0)) is not None:
        notes.append((note.si_pid, time.monotonic_ns()))
    return notes


_RECORD = struct.Struct("qq")
_MAX_WORKERS = 256
"""For further workers, the time of the exit counts as that of the failure."""


class FailureNote:
    """When one worker's script failed, and with which exit code.

    The script fails before its threads, its exit handlers and the interpreter end.
    """

    def __init__(self, memory: mmap.mmap, local_rank: int) -> None:
        self._memory = memory
        self._offset = local_rank * _RECORD.size
        self._exists = local_rank < _MAX_WORKERS
        self._pid = 0
        self._server = 0

    def set_owner(self) -> None:
        """Let only this process write the note, not children that the script forks."""
        self._pid, self._server = os.getpid(), os.getppid()

    def note(self, code: int) -> None:
        """Note that the script fails now, and wake the server, as the process may not exit soon."""
        if os.getpid() == self._pid:
            self.write(time.monotonic_ns(), code)
            try:
                os.kill(self._server, signal.SIGCHLD)
            except OSError:  # the script has changed its user
                pass

    def write(self, nanoseconds: int, code: int) -> None:
        if self._exists:
            _RECORD.pack_into(self._memory, self._offset, nanoseconds, code)

    def clear(self) -> None:
        self.write(0, 0)

    @property
    def failure(self) -> tuple[float, int] | None:
        """The time in seconds of the monotonic clock, and the exit code; None: it has not failed."""
        if not self._exists:
            return None
        nanoseconds, code = _RECORD.unpack_from(self._memory, self._offset)
        return (nanoseconds / 1e9, code) if code else None


class FailureNotes:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        # Made before the first fork, so workers share it.
        self._memory = mmap.mmap(-1, _MAX_WORKERS * _RECORD.size)

    def of(self, local_rank: int) -> FailureNote:
        return FailureNote(self._memory, local_rank)
