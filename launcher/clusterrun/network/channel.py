"""Channels: typed messages between two processes, over a stream socket.

A frame is the length of its body (4 bytes, big-endian), the body (msgpack, one message of a union),
and 16 bytes of MAC if both sides have a token. Agents and their coordinator speak over TCP, a command
and an agent over a Unix socket, an agent and the program that called it over pipes (caller.py); the
agent's helpers have frames of their own (workers/fork_server/channel.py), since they run on Pythons that
have no msgspec. No channel blocks.
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
"""Bytes of a body: above the longest of a member's, a report of 10,000 workers."""

MAX_HELLO_BYTES = 64 << 10
"""Bytes of the first body on a connection that may come from anywhere."""

MAX_UNSENT_BYTES = 8 << 20
"""Bytes queued for a process that does not read; with more, the channel ends."""

_LENGTH_BYTES = 4
_READ_BYTES = 64 << 10

_LONGEST_BETWEEN_PROBES = 32767
"""Seconds, the kernel's own limit (MAX_TCP_KEEPIDLE)."""

MessageT = TypeVar("MessageT")


def framed(body: bytes) -> bytes:
    """Return an encoded message as it is sent where there is no MAC."""
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class ChannelEnd(Enum):
    """How a channel ended: what is known of the other process differs."""

    CLOSED = "is gone"
    """Its kernel has closed the connection: the process has ended."""
    RESET = "was reset"
    """Its kernel has forgotten the connection: the process has ended, or was out of reach."""
    REFUSED = "is refused"
    """Its kernel knows of no program there."""
    UNREACHABLE = "does not answer"
    """Its host no longer answers, not even with a refusal."""
    BAD = "sent a bad frame"
    SLOW = "does not read what it is sent"
    OURS = "is closed here"
    """This side has closed it, or its own kernel can't go on with it."""


_OF_ERRORS = {
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
    """One end of a connection from which ``MessageT`` is read; it takes over the socket.

    The end of the other side raises no error: it sets ``end``. What is sent after that is dropped.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[MessageT],
        sock: socket.socket,
        handshake: Handshake | None = None,
    ) -> None:
        """Begin with the handshake, if there is one; messages sent meanwhile follow it."""
        self._tcp: socket.socket | None = None
        if isinstance(sock, socket.socket):
            sock.settimeout(0)
            if sock.family != socket.AF_UNIX:
                self._tcp = sock
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.end: ChannelEnd | None = None
        """How it ended; None while it is open."""
        self.trouble = ""
        """The system's words for that; "" if there are none."""
        self.longest = MAX_FRAME_BYTES
        """Maximum bytes of a body from the other side."""
        self.max_unsent: float = MAX_UNSENT_BYTES
        self._socket = sock
        self._decoder = decoder
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._after_handshake: list[bytes] = []
        self._was_reset = False
        self._forget: Callable[[int], object] = lambda _: None
        self._seals: FrameMacs | None = None
        self._handshake = handshake
        self._step = Step(b"", 0)
        if handshake is not None:
            self._take_step(next(handshake))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is over."""
        return self._handshake is None

    @property
    def has_unfinished_input(self) -> bool:
        """Whether a part of a handshake or of a frame was received."""
        return bool(self._incoming)

    @property
    def wants_write(self) -> bool:
        """Whether to call ``flush`` when the socket becomes writable."""
        return bool(self._outgoing) and self.end is None

    def watch(
        self,
        loop: Loop[EventT],
        ready: Ready[EventT],
        rank: Priority = Priority.KNOWN,
        *,
        reads: bool = True,
    ) -> None:
        """Have ``ready`` called when it can be read, or take what is queued, until it is closed."""
        self._forget = loop.forget
        loop.watch(self.fileno(), ready, rank, reads=reads, writes=self.wants_write)

    @property
    def local_address(self) -> str:
        """The IP address of this end; "" if it has none."""
        with suppress(OSError):
            return plain_address(self._tcp.getsockname()) if self._tcp else ""
        return ""

    def give_up_after(self, seconds: float) -> None:
        """Let the kernel end a TCP connection if the other host does not answer for that long.

        If nothing is sent, the kernel sends probes: a paused agent sends no heartbeats, and its
        host may fail meanwhile.
        """
        if self._tcp is None:
            return
        # Heartbeats are more frequent: the kernel probes only connections without any.
        between = min(max(1, math.ceil(seconds / 3)), _LONGEST_BETWEEN_PROBES)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        options = {
            socket.TCP_KEEPIDLE: between,
            socket.TCP_KEEPINTVL: between,
            # It limits the probes, too.
            socket.TCP_USER_TIMEOUT: int(seconds * 1000),
        }
        for option, value in options.items():
            self._tcp.setsockopt(socket.IPPROTO_TCP, option, value)

    def is_closed_by_peer(self) -> bool:
        """Return whether the other side has closed it, and all that it sent was received."""
        try:
            return self.end is not None or not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; what the socket does not take now is queued."""
        self.send_body(msgspec.msgpack.encode(message))

    def send_body(self, body: bytes) -> None:
        """Send an encoded message: one body may go to many channels."""
        if not self.is_ready:
            self._after_handshake.append(body)
            return
        mac = b"" if self._seals is None else self._seals.sent.mac(body)
        self._send(framed(body) + mac)

    def flush(self) -> None:
        """Send as much of what is queued as the socket takes now."""
        while self._outgoing and self.end is None:
            try:
                sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError) as error:
                self._was_reset |= isinstance(error, ConnectionResetError)
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
            BadFrame: the other side sent bytes that no clusterrun of this job sends.

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
        """Close the socket; what is queued is dropped. ``how`` counts if nothing has ended it yet."""
        self.end = self.end or how
        self._forget(self.fileno())
        self._socket.close()

    def shut_down(self) -> None:
        """Close the socket, and let the other side know, also if another process of this host holds it."""
        if self._tcp is not None:
            with suppress(OSError):
                self._tcp.shutdown(socket.SHUT_RDWR)
        self.close()

    def _send(self, data: bytes) -> None:
        if self.end is not None:
            return
        self._outgoing += data
        self.flush()
        if len(self._outgoing) > self.max_unsent:
            self.end, self.trouble = ChannelEnd.SLOW, ChannelEnd.SLOW.value

    def _read(self) -> None:
        # Once: a sender that is quicker than this process would keep all else waiting. Most often that is
        # all; if not, the socket stays readable.
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
        """Remove the bodies of all frames that are whole."""
        incoming, mac_bytes = self._incoming, 0 if self._seals is None else MAC_BYTES
        while len(incoming) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(incoming[:_LENGTH_BYTES], "big")
            if end - _LENGTH_BYTES > self.longest:
                raise BadFrame(f"sent a message of {end - _LENGTH_BYTES} bytes")
            if len(incoming) < end + mac_bytes:
                return
            body = bytes(incoming[_LENGTH_BYTES:end])
            mac = bytes(incoming[end : end + mac_bytes])
            if self._seals is not None and not self._seals.received.is_of_next(body, mac):
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
            begins, expect = self._step.begins, self._step.expect
            if self._incoming[: len(begins)] != begins[: len(self._incoming)]:
                raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
            if len(self._incoming) < expect:
                return
            received = bytes(self._incoming[:expect])
            del self._incoming[:expect]
            try:
                self._take_step(self._handshake.send(received))
            except StopIteration as done:
                self._handshake, self._seals = None, done.value
                for body in self._after_handshake:
                    self.send_body(body)

    def _take_step(self, step: Step) -> None:
        self._step = step
        self._send(step.send)

    def _fail(self, error: OSError) -> None:
        how = _OF_ERRORS.get(error.errno or 0, ChannelEnd.OURS)
        self.end = ChannelEnd.RESET if self._was_reset else how
        text = os.strerror(error.errno or 0)
        self.trouble = text[:1].lower() + text[1:]


class OutgoingChannel(Channel[FromCoordinator]):
    """A member's channel to one address and port, from the moment at which it begins to connect.

    Raises:
        OSError: this host has no route to the address.

    """

    def __init__(self, address: Address, port: int, token: bytes) -> None:
        self.address = address
        self.port = port
        where = address.at(port)
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            sock.settimeout(0)
            with suppress(BlockingIOError):
                sock.connect(where)
        except OSError:
            sock.close()
            raise
        super().__init__(FROM_COORDINATOR, sock, member_handshake(token, packed_address(where)))

    @property
    def connected(self) -> bool:
        """Whether the other side has accepted: the first bytes have been sent."""
        return not self._outgoing
