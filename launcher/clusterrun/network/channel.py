"""Channels: typed messages between two processes over a non-blocking stream socket.

A frame is the length of its body (4 bytes, big-endian), the body (one message in msgpack), and a MAC
of 16 bytes if both sides have a token. Agents and the coordinator are connected by TCP, a command and
an agent by a Unix socket. The agent's helper processes have a frame format of their own
(workers/fork_server/channel.py), because msgspec may be missing in their Python.
"""

import errno
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from clusterrun.loop import EventT, Loop, Priority, Ready
from clusterrun.network.addresses import Address, plain_address
from clusterrun.network.handshake import (
    MAC_BYTES,
    BadFrame,
    Fault,
    FrameMacs,
    Handshake,
    HandshakeFailed,
    Step,
    member_handshake,
    packed_address,
)
from clusterrun.policy.messages import FromCoordinator, FromMember

MAX_FRAME_BYTES = 4 << 20
"""Of a body. The longest message is a member's report of 10,000 workers, which is shorter."""

MAX_HELLO_BYTES = 64 << 10
"""Of the first body on a connection, which any program may have opened."""

MAX_UNSENT_BYTES = 8 << 20
"""Queued for a peer that does not read; with more, the channel ends."""

_LENGTH_BYTES = 4
_READ_BYTES = 64 << 10

_MAX_PROBE_SECONDS = 32767
"""The kernel's limit (MAX_TCP_KEEPIDLE)."""

MessageT = TypeVar("MessageT")


def framed(body: bytes) -> bytes:
    """Return the frame of an encoded message, without a MAC."""
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class ChannelEnd(Enum):
    """How a channel ended, and what that says about the peer process."""

    CLOSED = "is gone"
    """The peer's kernel closed the connection: the process has ended."""
    RESET = "was reset"
    """The peer's kernel no longer knows the connection: the process ended or was unreachable."""
    REFUSED = "is refused"
    """No program listens at that port."""
    UNREACHABLE = "does not answer"
    """The peer's host sends nothing, not even a refusal."""
    BAD = "sent a bad frame"
    SLOW = "does not read what it is sent"
    OURS = "is closed here"
    """This process closed the channel, or its own kernel failed."""


_END_BY_ERRNO = {
    errno.ECONNRESET: ChannelEnd.RESET,
    errno.ECONNREFUSED: ChannelEnd.REFUSED,
    errno.ETIMEDOUT: ChannelEnd.UNREACHABLE,
    errno.EHOSTUNREACH: ChannelEnd.UNREACHABLE,
    errno.ENETUNREACH: ChannelEnd.UNREACHABLE,
}

FROM_MEMBERS: msgspec.msgpack.Decoder[FromMember] = msgspec.msgpack.Decoder(FromMember)
FROM_COORDINATOR: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(
    FromCoordinator
)


class Channel(Generic[MessageT]):
    """One end of a connection that delivers ``MessageT``; it owns the socket.

    A connection that ends raises no error but sets ``end``. Messages sent after that are dropped.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[MessageT],
        sock: socket.socket,
        handshake: Handshake | None = None,
    ) -> None:
        """Start the handshake, if there is one; messages sent meanwhile are queued behind it."""
        self._tcp: socket.socket | None = None
        if isinstance(sock, socket.socket):
            sock.settimeout(0)
            if sock.family != socket.AF_UNIX:
                self._tcp = sock
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end: ChannelEnd | None = None
        """How the channel ended; None while it is open."""
        self.error_text: str | None = None
        """The operating system's description of an error that ended the channel."""
        self.max_body_bytes = MAX_FRAME_BYTES
        """Of a message from the peer."""
        self.max_unsent_bytes: float = MAX_UNSENT_BYTES
        self._socket = sock
        self._decoder = decoder
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._after_handshake: list[bytes] = []
        self._was_reset = False
        self._forget: Callable[[int], object] = lambda _: None
        self._macs: FrameMacs | None = None
        self._handshake = handshake
        self._step = Step(b"", 0)
        if handshake is not None:
            self._take_step(next(handshake))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is complete."""
        return self._handshake is None

    @property
    def has_unfinished_input(self) -> bool:
        """Whether an incomplete handshake or frame was received."""
        return bool(self._incoming)

    @property
    def wants_write(self) -> bool:
        """Whether data is queued; call ``flush`` when the socket becomes writable."""
        return bool(self._outgoing) and self.end is None

    @property
    def unsent_bytes(self) -> int:
        return len(self._outgoing)

    def watch(
        self,
        loop: Loop[EventT],
        ready: Ready[EventT],
        priority: Priority = Priority.AUTHENTICATED,
        *,
        reads: bool = True,
    ) -> None:
        """Have ``loop`` call ``ready`` when the socket is readable, or writable while data is queued.

        ``close`` ends this.
        """
        self._forget = loop.forget
        loop.watch(self.fileno(), ready, priority, reads=reads, writes=self.wants_write)

    @property
    def local_address(self) -> str | None:
        """The IP address of this end; None if the socket is not TCP or has failed."""
        with suppress(OSError):
            return plain_address(self._tcp.getsockname()[0]) if self._tcp else None
        return None

    def limit_silence(self, seconds: float) -> None:
        """Have the kernel end a TCP connection if the peer's host does not answer for ``seconds``.

        The kernel probes an idle connection: a paused agent sends no heartbeats, and its host may
        fail meanwhile.
        """
        if self._tcp is None:
            return
        # Longer than the time between heartbeats: the kernel probes only connections without any.
        between = min(max(1, math.ceil(seconds / 3)), _MAX_PROBE_SECONDS)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            socket.TCP_KEEPIDLE: between,
            socket.TCP_KEEPINTVL: between,
            # This also limits the number of probes.
            socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        }
        for option, value in options.items():
            self._tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def is_closed_by_peer(self) -> bool:
        """Return whether the peer closed the connection and all that it sent was received."""
        try:
            return self.end is not None or not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; bytes that the socket does not take now are queued."""
        self.send_body(msgspec.msgpack.encode(message))

    def send_body(self, body: bytes) -> None:
        """Send an encoded message, for example the same one to many channels."""
        if not self.is_ready:
            self._after_handshake.append(body)
            return
        mac = b"" if self._macs is None else self._macs.sent.mac(body)
        self._send(framed(body) + mac)

    def flush(self) -> None:
        """Send as much of the queued data as the socket takes now."""
        while self._outgoing and self.end is None:
            try:
                sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError) as error:
                self._was_reset |= isinstance(error, ConnectionResetError)
                # ``receive`` sets ``end``, after it has read what the peer sent before.
                self._outgoing.clear()
                return
            except OSError as error:
                self._fail(error)
                return
            del self._outgoing[:sent]

    def receive(self) -> list[MessageT]:
        """Send queued data, and return the messages that are complete.

        Raises:
            BadFrame: the peer sent bytes that no clusterrun of this job sends.

        """
        self.flush()
        self._read()
        try:
            self._advance_handshake()
            return [self._decoded(body) for body in self._bodies()] if self.is_ready else []
        except BadFrame:
            self.end = ChannelEnd.BAD
            self._incoming.clear()
            raise

    def close(self, how: ChannelEnd = ChannelEnd.OURS) -> None:
        """Close the socket and drop queued data; set ``end`` to ``how`` if it is not set yet."""
        self.end = self.end or how
        self._forget(self.fileno())
        self._socket.close()

    def shut_down(self) -> None:
        """Close the connection even if another process of this host has the socket open."""
        if self._tcp is not None:
            with suppress(OSError):
                self._tcp.shutdown(socket.SHUT_RDWR)
        self.close()

    def _send(self, data: bytes) -> None:
        if self.end is not None:
            return
        self._outgoing += data
        self.flush()
        if len(self._outgoing) > self.max_unsent_bytes:
            self.end, self.error_text = ChannelEnd.SLOW, ChannelEnd.SLOW.value

    def _read(self) -> None:
        # Only once: otherwise a fast sender would keep everything else waiting. If there is more, the
        # socket stays readable.
        if self.end is not None:
            return
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        if not data:
            self.end = ChannelEnd.RESET if self._was_reset else ChannelEnd.CLOSED
        self._incoming += data

    def _bodies(self) -> Iterator[bytes]:
        """Remove the complete frames from the input, and yield their bodies."""
        incoming, mac_bytes = self._incoming, 0 if self._macs is None else MAC_BYTES
        while len(incoming) >= _LENGTH_BYTES:
            length = int.from_bytes(incoming[:_LENGTH_BYTES], "big")
            if length > self.max_body_bytes:
                raise BadFrame(f"sent a message of {length} bytes")
            end = _LENGTH_BYTES + length
            if len(incoming) < end + mac_bytes:
                return
            body = bytes(incoming[_LENGTH_BYTES:end])
            mac = bytes(incoming[end : end + mac_bytes])
            if self._macs is not None and not self._macs.received.verify(body, mac):
                raise BadFrame("sent a message that was corrupted in transit")
            del incoming[: end + mac_bytes]
            yield body

    def _decoded(self, body: bytes) -> MessageT:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadFrame("sent bytes that are not a message of clusterrun's") from error

    def _advance_handshake(self) -> None:
        while self._handshake is not None:
            prefix, size = self._step.prefix, self._step.size
            if self._incoming[: len(prefix)] != prefix[: len(self._incoming)]:
                raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
            if len(self._incoming) < size:
                return
            received = bytes(self._incoming[:size])
            del self._incoming[:size]
            try:
                self._take_step(self._handshake.send(received))
            except StopIteration as done:
                self._handshake, self._macs = None, done.value
                for body in self._after_handshake:
                    self.send_body(body)

    def _take_step(self, step: Step) -> None:
        self._step = step
        self._send(step.send)

    def _fail(self, error: OSError) -> None:
        how = _END_BY_ERRNO.get(error.errno or 0, ChannelEnd.OURS)
        self.end = ChannelEnd.RESET if self._was_reset else how
        text = os.strerror(error.errno or 0)
        self.error_text = text[:1].lower() + text[1:]


class OutgoingChannel(Channel[FromCoordinator]):
    """A member's channel to one address and port of node 0."""

    def __init__(self, address: Address, port: int, token: bytes) -> None:
        """Start to connect.

        Raises:
            OSError: this host has no route to the address.

        """
        self.address = address
        self.port = port
        sockname = address.at(port)
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(0)
            with suppress(BlockingIOError):
                sock.connect(sockname)
        except OSError:
            sock.close()
            raise
        super().__init__(FROM_COORDINATOR, sock, member_handshake(token, packed_address(sockname)))

    @property
    def connected(self) -> bool:
        """Whether the connection is established: the first bytes have been sent."""
        return not self._outgoing
