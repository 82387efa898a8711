"""How the server learns that a worker's script has failed: its process may run on.

A worker that runs its script in place shares memory with the server. One that has executed Python sends
a datagram (``startup/sitecustomize.py``), as the folder for temporary files may hang, and descriptors of
ours would show in the worker; the server then writes the note for it.
"""

from __future__ import annotations

import _signal as signal
import _socket as socket
import mmap
import os
import sys
import time

VARIABLE = "CLUSTERRUN_FAILURE_NOTES"
"""The name of the socket, for the worker's start: it is taken away there."""

_CREDENTIALS = 12
"""Bytes: the pid, user id and group id of the sender, an int each."""

_PID = 4
_MOST = 64
_DIGITS = 19
"""Of nanoseconds in eight bytes."""


class FailureNotes:
    """Receives the notes of the workers of this node."""

    def __init__(self) -> None:
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)
        # The kernel adds the sender's pid, and chooses a name that is no file.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("")
        self.name = os.fsdecode(self._socket.getsockname()[1:])

    def close(self) -> None:
        """Receive no more."""
        self._socket.close()

    def received(self) -> list[tuple[int, int]]:
        """Return the pid and the time of each failure since the last call, in nanoseconds.

        Any process may send something: what is no note is dropped, and the pid is the sender's own.
        """
        notes: list[tuple[int, int]] = []
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(_MOST, socket.CMSG_SPACE(_CREDENTIALS))
            except BlockingIOError:
                return notes
            for level, kind, credentials in ancillary:
                is_note = len(data) < _DIGITS and data.isdigit()
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and is_note:
                    notes.append((int.from_bytes(credentials[:_PID], sys.byteorder), int(data)))


_BYTES_OF_TIME = 8
_BYTES = 16
_MAX_WORKERS = 256
"""Failures of further workers are dated by their exit."""


class ScriptEnd:
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
