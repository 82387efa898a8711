"""How the server learns that a worker's script has failed: its process may run on.

A worker that runs its script in place shares memory with the server. One that has executed Python sends
a signal (``startup/sitecustomize.py``), as the folder for temporary files may hang, and descriptors of
ours would show in the worker; the server then writes the note for it.
"""

from __future__ import annotations

import _signal as signal
import mmap
import os
import time

VARIABLE = "CLUSTERRUN_FAILURE_NOTES"
"""The server's pid, a colon and ``SIGNAL``, for the worker's start: it is taken away there."""

SIGNAL = signal.SIGRTMIN + 3
"""Signals of real time are queued, each with the pid of its sender. The server blocks it, and is woken by SIGCHLD."""


def failed() -> list[tuple[int, int]]:
    """Return the pid and the time of each failure since the last call, in nanoseconds of the monotonic clock.

    Any process of this user may send the signal, and no other one: the pid is the sender's own.
    """
    notes: list[tuple[int, int]] = []
    while (note := signal.sigtimedwait([SIGNAL], 0)) is not None:
        notes.append((note.si_pid, time.monotonic_ns()))
    return notes


_BYTES_OF_TIME = 8
_BYTES = 16
_MAX_WORKERS = 256
"""Failures of further workers are dated by their exit."""


class FailureNote:
    """One worker's note: when its script failed, and with which exit code.

    That is before its threads, exit handlers and the interpreter end.
    """

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._memory = memory
        self._bytes = slice(place * _BYTES, (place + 1) * _BYTES)
        self._pid = 0
        self._server = 0

    def belong_to_this_process(self) -> None:
        """Let only this process write the note, not children that the script forks."""
        self._pid, self._server = os.getpid(), os.getppid()

    def note(self, code: int) -> None:
        """Note that the script fails now, and have the server look: the process may not exit."""
        if os.getpid() == self._pid:
            self.write(time.monotonic_ns(), code)
            try:
                os.kill(self._server, signal.SIGCHLD)
            except OSError:  # the script has changed its user
                pass

    def write(self, nanoseconds: int, code: int) -> None:
        if self._bytes.stop <= len(self._memory):
            time_noted = nanoseconds.to_bytes(_BYTES_OF_TIME, "little")
            code_noted = code.to_bytes(_BYTES - _BYTES_OF_TIME, "little")
            self._memory[self._bytes] = time_noted + code_noted

    def clear(self) -> None:
        if self._bytes.stop <= len(self._memory):
            self._memory[self._bytes] = bytes(_BYTES)

    @property
    def failure(self) -> tuple[float, int] | None:
        """The time by the monotonic clock, and the code; None if no failure is noted."""
        noted = self._memory[self._bytes]
        code = int.from_bytes(noted[_BYTES_OF_TIME:], "little")
        return (int.from_bytes(noted[:_BYTES_OF_TIME], "little") / 1e9, code) if code else None


class FailureNotes:
    """The notes of all workers of this node."""

    def __init__(self) -> None:
        # Before the first fork: workers share it.
        self._memory = mmap.mmap(-1, _MAX_WORKERS * _BYTES)

    def of(self, local_rank: int) -> FailureNote:
        return FailureNote(self._memory, local_rank)
