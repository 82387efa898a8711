"""A connection between two agents: a greeting, then messages; never blocking."""

import errno
import math
import os
import socket
from contextlib import suppress
from typing import Generic

from clusterrun.coordination.messages import (
    FromCoordinator,
    FromMember,
)
from clusterrun.rendezvous.names.addresses import plain_address
from clusterrun.rendezvous.wire.frames import (
    MAXIMUM_FRAME,
    Codec,
    MessageT,
    framed,
)
from clusterrun.rendezvous.wire.handshake import (
    Fault,
    HandshakeFailed,
    Step,
    Steps,
)

_READ_BYTES = 64 << 10
_UNREACHABLE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""What the kernel says of a host that answers nothing any more, not even "no"."""

_LONGEST_BETWEEN_PROBES = 32767
"""Seconds, the kernel's own limit (MAX_TCP_KEEPIDLE)."""

_MOST_UNSENT = 8 << 20
"""Bytes that wait for a member who does not read; it is given up then."""


class Connection(Generic[MessageT]):
    """One end of a stream socket that ``MessageT`` comes out of.

    Takes over ``sock`` and makes it non-blocking. The other's death is no error here: it sets
    ``closed``, and ``trouble`` where there is more to say than end of file; what is sent from then
    on is dropped.
    """

    def __init__(
        self, sock: socket.socket, codec: Codec[MessageT], greeting: Steps | None = None
    ) -> None:
        sock.settimeout(0)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.trouble = ""
        self.unreachable = False
        """It is closed because the other host answers nothing any more."""
        self.longest = MAXIMUM_FRAME
        """Bytes that a message from the other side may have."""
        self._socket = sock
        self._codec = codec
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._greeting = greeting
        self._step = Step(b"", 0)
        if greeting is not None:
            self._go_on(next(greeting))

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    @property
    def greeted(self) -> bool:
        """Whether both sides know who they talk to."""
        return self._greeting is None

    @property
    def said_something(self) -> bool:
        """Whether the other side has left a greeting or a message unfinished."""
        return bool(self._incoming)

    @property
    def all_sent(self) -> bool:
        """Whether the kernel has taken all that there was to send."""
        return not self._outgoing

    @property
    def wants_write(self) -> bool:
        """Whether something waits for the socket to become writable (then call ``flush``)."""
        return bool(self._outgoing) and not self.closed

    def give_up_after(self, seconds: float) -> None:
        """Have the kernel close the connection when the other host answers nothing for so long.

        The kernel asks for an answer itself where nobody speaks: an agent that is suspended by its
        user says nothing, and nobody expects it to, but its host may die.
        """
        if self._socket.family == socket.AF_UNIX:
            return
        # Heartbeats are more frequent: only a connection without any is probed.
        between = min(max(1, math.ceil(seconds / 3)), _LONGEST_BETWEEN_PROBES)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            socket.TCP_KEEPIDLE: between,
            socket.TCP_KEEPINTVL: between,
            # It also bounds the probes.
            socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        }
        for option, value in options.items():
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def local_address(self) -> str:
        """Our end, as a plain IP address; "" where there is none."""
        with suppress(OSError):
            return plain_address(self._socket.getsockname())
        return ""

    def has_hung_up(self) -> bool:
        """Tell whether the other side has closed it, and has said no more than was received."""
        try:
            return self.closed or not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: FromMember | FromCoordinator) -> None:
        """Send ``message``, or queue what does not fit."""
        self.send_frame(framed(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what ``framed`` made: once for many connections."""
        if self.closed:
            return
        self._outgoing += frame
        self.flush()
        if len(self._outgoing) > _MOST_UNSENT:
            self._fail("does not read what it is sent")

    def flush(self) -> None:
        """Send as much of what is queued as the socket takes now."""
        while self._outgoing and not self.closed:
            try:
                sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                # Left to ``receive``: what the other said before is still to be read.
                self._outgoing.clear()
                return
            except OSError as error:
                self._fail(error)
                return
            del self._outgoing[:sent]

    def receive(self) -> list[MessageT]:
        """Return the messages that are whole now.

        Raises:
            HandshakeFailed: the other side is not one to talk to.
            BadFrame: it says what no clusterrun would.

        """
        self._read()
        self._greet()
        if not self.greeted:
            return []
        return list(self._codec.take(self._incoming, self.longest))

    def close(self) -> None:
        """Close the socket; what is queued is dropped."""
        self.closed = True
        self._socket.close()

    def _read(self) -> None:
        while not self.closed and len(self._incoming) <= self.longest + _READ_BYTES:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._fail(error)
                return
            self._incoming += data
            self.closed = not data
            if len(data) < _READ_BYTES:
                # That was all, most often; if not, the socket stays readable.
                return

    def _greet(self) -> None:
        while self._greeting is not None:
            begins, expect = self._step.begins, self._step.expect
            if self._incoming[: len(begins)] != begins[: len(self._incoming)]:
                raise HandshakeFailed(Fault.NO_CLUSTERRUN)
            if len(self._incoming) < expect:
                return
            heard = bytes(self._incoming[:expect])
            del self._incoming[:expect]
            try:
                self._go_on(self._greeting.send(heard))
            except StopIteration:
                self._greeting = None

    def _go_on(self, step: Step) -> None:
        self._step = step
        self.send_frame(step.send)

    def _fail(self, error: OSError | str) -> None:
        self.closed = True
        self.unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE
        text = error if isinstance(error, str) else os.strerror(error.errno or 0)
        self.trouble = text[:1].lower() + text[1:]
