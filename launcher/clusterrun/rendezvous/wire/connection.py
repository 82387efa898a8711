"""A connection between two agents: a handshake, then messages; it never blocks."""

import errno
import math
import os
import select
import socket
from contextlib import suppress
from typing import Generic

from clusterrun.policy.messages import FromCoordinator, FromMember
from clusterrun.rendezvous.names.addresses import plain_address
from clusterrun.rendezvous.wire.frames import MAXIMUM_FRAME, Codec, MessageT, framed
from clusterrun.rendezvous.wire.handshake import Fault, HandshakeFailed, Step, Steps

_READ_BYTES = 64 << 10
_UNREACHABLE = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""The kernel's errors if a host no longer answers, not even with a refusal."""

_LONGEST_BETWEEN_PROBES = 32767
"""Seconds, the kernel's own limit (MAX_TCP_KEEPIDLE)."""

_MOST_UNSENT = 8 << 20
"""Bytes queued for a member that does not read; with more, the connection is closed."""


class Connection(Generic[MessageT]):
    """One end of a stream socket from which ``MessageT`` is read; it takes over ``sock``.

    The end of the other side raises no error: it sets ``closed``, and ``trouble`` if more than end of
    file is known. What is sent after that is dropped.
    """

    def __init__(
        self, sock: socket.socket, codec: Codec[MessageT], handshake: Steps | None = None
    ) -> None:
        sock.settimeout(0)
        self._is_tcp = sock.family != socket.AF_UNIX
        if self._is_tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        self.trouble = ""
        self.unreachable = False
        """It is closed because the other host no longer answers."""
        self.closed_by_peer = False
        """The other host's kernel has closed it."""
        self.refused = False
        """The other host's kernel knows of no program there."""
        self.was_reset = False
        """The other side's kernel has forgotten it: the program has ended, or was out of reach."""
        self.longest = MAXIMUM_FRAME
        """Maximum bytes of a message from the other side."""
        self._socket = sock
        self._codec = codec
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._handshake = handshake
        self._step = Step(b"", 0)
        self._watched = 0
        if handshake is not None:
            self._take_step(next(handshake))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is over, and messages can be sent."""
        return self._handshake is None

    @property
    def has_unfinished_input(self) -> bool:
        """Whether a part of a handshake or of a message was received."""
        return bool(self._incoming)

    @property
    def all_sent(self) -> bool:
        """Whether the kernel has taken all that was sent."""
        return not self._outgoing

    @property
    def wants_write(self) -> bool:
        """Whether to call ``flush`` when the socket becomes writable."""
        return bool(self._outgoing) and not self.closed

    def watch(self, epoll: select.epoll) -> None:
        """Have ``epoll`` wait for input and, while something is queued, until it can be sent."""
        events = select.EPOLLIN | (select.EPOLLOUT if self.wants_write else 0)
        if not self._watched:
            epoll.register(self, events)
        elif events != self._watched:
            epoll.modify(self, events)
        self._watched = events

    def unwatch(self, epoll: select.epoll) -> None:
        epoll.unregister(self)
        self._watched = 0

    def give_up_after(self, seconds: float) -> None:
        """Let the kernel close the connection if the other host does not answer for so long.

        If nothing is sent, the kernel sends probes: a paused agent sends no heartbeats, and its
        host may fail meanwhile.
        """
        if not self._is_tcp:
            return
        # Heartbeats are more frequent: the kernel probes only connections without any.
        between = min(max(1, math.ceil(seconds / 3)), _LONGEST_BETWEEN_PROBES)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            socket.TCP_KEEPIDLE: between,
            socket.TCP_KEEPINTVL: between,
            # It limits the probes, too.
            socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        }
        for option, value in options.items():
            self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def local_address(self) -> str:
        """The IP address of this end; "" if it has none."""
        with suppress(OSError):
            return plain_address(self._socket.getsockname())
        return ""

    def is_closed_by_peer(self) -> bool:
        """Return whether the other side has closed it, and all that it sent was received."""
        try:
            return self.closed or not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: FromMember | FromCoordinator) -> None:
        """Send ``message``; what the socket does not take now is queued."""
        self.send_frame(framed(message))

    def send_frame(self, frame: bytes) -> None:
        """Send what ``framed`` returned: one frame may go to many connections."""
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
            except (BrokenPipeError, ConnectionResetError) as error:
                self.was_reset |= isinstance(error, ConnectionResetError)
                # ``receive`` notices it: what the other side sent before is still to be read.
                self._outgoing.clear()
                return
            except OSError as error:
                self._fail(error)
                return
            del self._outgoing[:sent]

    def receive(self) -> list[MessageT]:
        """Send what is queued, and return the messages that are whole now.

        Raises:
            HandshakeFailed: the other side does not belong to this job.
            BadFrame: it sent bytes that no clusterrun sends.

        """
        self.flush()
        self._read()
        self._advance_handshake()
        if not self.is_ready:
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
            self.closed = self.closed_by_peer = not data
            if len(data) < _READ_BYTES:
                # Most often that was all; if not, the socket stays readable.
                return

    def _advance_handshake(self) -> None:
        while self._handshake is not None:
            begins, expect = self._step.begins, self._step.expect
            if self._incoming[: len(begins)] != begins[: len(self._incoming)]:
                raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
            if len(self._incoming) < expect:
                return
            received = bytes(self._incoming[:expect])
            del self._incoming[:expect]
            try:
                self._take_step(self._handshake.send(received))
            except StopIteration:
                self._handshake = None

    def _take_step(self, step: Step) -> None:
        self._step = step
        self.send_frame(step.send)

    def _fail(self, error: OSError | str) -> None:
        self.closed = True
        self.unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE
        self.was_reset |= isinstance(error, OSError) and error.errno == errno.ECONNRESET
        self.closed_by_peer = self.was_reset
        self.refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
        text = error if isinstance(error, str) else os.strerror(error.errno or 0)
        self.trouble = text[:1].lower() + text[1:]
