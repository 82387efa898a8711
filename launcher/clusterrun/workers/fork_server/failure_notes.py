"""What a worker that has executed Python sends when an exception leaves its script.

Its process may run on: see ``startup/sitecustomize.py``, which sends the note. It comes by a datagram,
as the folder for temporary files may hang, and descriptors of ours would show in the worker.
"""

from __future__ import annotations

import _socket as socket
import os
import sys

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
