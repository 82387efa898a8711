"""Non-blocking writes to the launcher's terminals, pipes, sockets and files.

The user's shell and other programs share the open file descriptions of our stdout and stderr.
O_NONBLOCK must not be set on these, because it would make the other programs' writes fail.
"""

import os
import select
import socket
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec import Struct

HIGH_WATER_MARK = 256 << 10
"""Bytes: while more than this wait for an output, the workers' pipes are not read."""

LOW_WATER_MARK = HIGH_WATER_MARK // 2
"""Bytes: once less than this wait, reading continues."""

WriteSome = Callable[[bytearray], int]
"""Writes some of the bytes and returns how many; raises BlockingIOError if it can write none."""


class LostOutput(Struct, frozen=True):
    """``size`` bytes that could not be written to ``name``."""

    name: str
    """"log file /logs/7f3a/attempt-0/gpu-07-0/rank-3.out" or "standard output"."""
    size: int
    why: str
    """The error, "No space left on device"; "" if the time was too short."""


class LineOutput(Protocol):
    """A buffered output: a log file, a terminal, a pipe."""

    @property
    def waiting(self) -> int:
        """The number of bytes that are not written yet."""
        ...

    @property
    def failure(self) -> OSError | None:
        """The error after which everything is dropped."""
        ...

    def loss(self) -> LostOutput | None:
        """Return what was dropped."""
        ...

    def write(self, data: bytes) -> None: ...


class DescriptorOutput:
    """A buffered output. Call ``flush`` when ``descriptor`` is writable."""

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
        """Return what was dropped after an error, without what still waits for a slow reader."""
        if self.failure is None:
            return None
        return LostOutput(self._name, self._dropped, self.failure.strerror or "")

    def flush(self) -> None:
        """Write what fits now. After an error drop everything: the reader or the terminal is gone."""
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
    """Return an output to the terminal, pipe, socket or file of ``descriptor``; ``name`` is for messages."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        # A second open file description would write from the beginning of the file.
        return DescriptorOutput(descriptor, partial(os.write, descriptor), name)
    if stat.S_ISSOCK(mode):
        # Sockets can't be opened again, but send() has a non-blocking flag.
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
    """Open the same file again, non-blocking; return None if that is not allowed.

    After su or sudo, the terminal or pipe belongs to another user and can't be opened by its path.
    A controlling terminal can still be opened as /dev/tty.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with suppress(OSError):
        return os.open(f"/proc/self/fd/{descriptor}", flags)
    with suppress(OSError):
        # Fails unless this is the terminal that controls our session.
        os.tcgetpgrp(descriptor)
        return os.open("/dev/tty", flags)
    return None


def _send(descriptor: int, data: bytearray) -> int:
    sock = socket.socket(fileno=descriptor)
    try:
        return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    finally:
        sock.detach()


def _write_when_ready(descriptor: int, data: bytearray) -> int:
    """Write at most PIPE_BUF bytes, which a pipe that polls as writable takes without blocking (pipe(7))."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[: select.PIPE_BUF])
