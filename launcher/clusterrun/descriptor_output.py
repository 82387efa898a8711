"""Writes to the launcher's terminals, pipes and sockets without waiting for their readers.

The user's shell and other programs share the open file descriptions of our stdout and stderr, so
O_NONBLOCK must not be set on those: it would make *their* writes fail.
"""

import os
import select
import socket
import stat
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

HIGH_WATER_MARK = 256 << 10
"""Bytes that wait for an output: above this, its workers' pipes are not read."""
LOW_WATER_MARK = HIGH_WATER_MARK // 2
"""Bytes that wait: below this, reading goes on."""

WriteSome = Callable[[bytearray], int]
"""Writes a part and returns its length; raises BlockingIOError if there is no room."""


class LostOutput(Struct, frozen=True):
    """``size`` bytes that could not be written to ``name``."""

    name: str
    """"log file /logs/7f3a/attempt-0/gpu-07-0/rank-3.out" or "standard output"."""
    size: int
    why: str
    """The error, "No space left on device"; "" if only the time was too short."""


class LineOutput(Protocol):
    """A place that lines are written to."""

    @property
    def waiting(self) -> int:
        """Bytes that are not written yet."""
        ...

    @property
    def failure(self) -> OSError | None:
        """The error after which everything is dropped; None if there is none."""
        ...

    def loss(self) -> LostOutput | None:
        """Return what was dropped; None if nothing was."""
        ...

    def write(self, data: bytes) -> None:
        """Take ``data``."""
        ...


class DescriptorOutput:
    """An output that must be flushed when ``descriptor`` is writable."""

    def __init__(self, descriptor: int, write_some: WriteSome, name: str = "") -> None:
        self.failure: OSError | None = None
        self._name = name
        self._dropped = 0
        self._descriptor = descriptor
        self._write_some = write_some
        self._waiting = bytearray()

    def fileno(self) -> int:
        return self._descriptor

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def write(self, data: bytes) -> None:
        if self.failure is None:
            self._waiting += data
        else:
            self._dropped += len(data)

    def loss(self) -> LostOutput | None:
        """Return what was dropped after an error; what still waits for a slow reader does not count."""
        if self.failure is None:
            return None
        return LostOutput(self._name, self._dropped, self.failure.strerror or "")

    def flush(self) -> None:
        """Write what fits now; drop everything after an error: the reader or the terminal is gone."""
        try:
            while self._waiting:
                del self._waiting[: self._write_some(self._waiting)]
        except BlockingIOError:
            return
        except OSError as error:
            self.failure = error
            self._dropped += len(self._waiting)
            self._waiting.clear()


def open_output(descriptor: int, name: str = "") -> DescriptorOutput:
    """Return an output to the terminal, pipe, socket or file that ``descriptor`` refers to."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        # Opened again, it would be written from its beginning.
        return DescriptorOutput(descriptor, partial(os.write, descriptor), name)
    if stat.S_ISSOCK(mode):
        # Sockets can't be opened again, but have a non-blocking flag for each call.
        return DescriptorOutput(descriptor, partial(_send, descriptor), name)
    own = _open_again(descriptor)
    if own is None:
        return DescriptorOutput(descriptor, partial(_write_when_ready, descriptor), name)
    return DescriptorOutput(own, partial(os.write, own), name)


def write_within(descriptor: int, data: bytes, seconds: float) -> None:
    """Write ``data``; drop what the reader does not take within ``seconds``."""
    output = open_output(descriptor)
    output.write(data)
    poll = select.poll()
    poll.register(output.fileno(), select.POLLOUT)
    deadline = time.monotonic() + seconds
    output.flush()
    while output.waiting and (left := deadline - time.monotonic()) > 0:
        poll.poll(left * 1000)
        output.flush()
    if output.fileno() != descriptor:
        os.close(output.fileno())


def _open_again(descriptor: int) -> int | None:
    """Open the same file again, non-blocking; None where that is not allowed.

    It is not for the terminal or pipe of another user (su, sudo): their inodes are private.
    /dev/tty can be opened by anyone whose terminal it is.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    for path in (f"/proc/self/fd/{descriptor}", *_terminal_of(descriptor)):
        try:
            return os.open(path, flags)
        except OSError:
            continue
    return None


def _terminal_of(descriptor: int) -> tuple[str, ...]:
    try:
        os.tcgetpgrp(descriptor)
    except OSError:
        # Not a terminal, or not the one that controls our session.
        return ()
    return ("/dev/tty",)


def _send(descriptor: int, data: bytearray) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        sock.detach()


def _write_when_ready(descriptor: int, data: bytearray) -> int:
    """Write no more than a pipe surely takes when it is writable at all (``man 7 pipe``)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[: select.PIPE_BUF])
