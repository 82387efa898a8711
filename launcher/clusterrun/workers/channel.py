"""Messages with file descriptors between the launcher's processes; never blocks.

A frame is its length (4 bytes, big-endian) and a marshalled dictionary: ``json`` would cost each
start of the fork server 10 ms. The key ``descriptors`` holds the number of descriptors that travel
with the frame's first byte (SCM_RIGHTS), so all have arrived when the frame is whole.
"""

import marshal
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from clusterrun.errors import InternalError
from clusterrun.loop import Loop
from clusterrun.policy.events import Event

Message = dict[str, Any]
"""The dictionary of a frame; ``descriptors`` is the channel's own key."""

MAXIMUM_FRAME = 16 << 20
"""Bytes of one dictionary: far above any message, far below what harms the agent."""

MARSHAL_VERSION = 2
"""Python 3.8 and newer read and write it alike: workers have an interpreter of their own."""

_LENGTH_BYTES = 4
_READ_BYTES = 256 << 10
_DESCRIPTOR_BYTES = struct.calcsize("i")
_MOST_DESCRIPTORS = 253
"""SCM_MAX_FD of the kernel: the most that one sendmsg can carry."""


class Channel:
    """One end of a socket pair that carries messages both ways.

    Takes over ``sock`` and makes it non-blocking. The peer's death raises no error: it sets
    ``closed``, and what is sent from then on is dropped.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self.closed = False
        self._socket = sock
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether ``flush`` must be called when the socket becomes writable."""
        return bool(self._outgoing)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send ``message`` with copies of ``fds``, or queue what does not fit; never blocks.

        The caller keeps its descriptors and may close them at once.

        Raises:
            InternalError: the message is larger than ``MAXIMUM_FRAME``.
        """
        if self.closed:
            return
        # Duplicates: the frame may wait here after the caller has closed its own.
        copies = tuple(os.dup(fd) for fd in fds)
        self._outgoing.append((memoryview(_encode(message, len(fds))), copies))
        self.flush()

    def flush(self) -> None:
        """Send as much of what is queued as the socket takes now."""
        while self._outgoing and self._send_some(*self._outgoing[0]):
            pass

    def receive(self) -> list[tuple[Message, tuple[int, ...]]]:
        """Return all messages that are whole now, each with its descriptors, which the caller closes.

        Sets ``closed`` once the peer has closed or died, and returns what it sent before that.

        Raises:
            InternalError: a frame is too large, or descriptors were lost (too many open files).
        """
        while self._receive_some():
            pass
        return list(self._whole_messages())

    def close(self) -> None:
        """Close the socket and the descriptors that were not taken; drop what is queued."""
        self.closed = True
        self._drop_outgoing()
        _close_all(self._descriptors)
        self._descriptors.clear()
        self._socket.close()

    def _send_some(self, data: memoryview, copies: tuple[int, ...]) -> bool:
        try:
            sent = self._socket.sendmsg([data], _ancillary(copies), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._drop_outgoing()
            return False
        _close_all(copies)
        if sent < len(data):
            self._outgoing[0] = (data[sent:], ())
        else:
            self._outgoing.popleft()
        return True

    def _drop_outgoing(self) -> None:
        """Drop what can no longer be sent; ``receive`` reads on and sets ``closed``."""
        for _, copies in self._outgoing:
            _close_all(copies)
        self._outgoing.clear()

    def _receive_some(self) -> bool:
        if self.closed:
            return False
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_BYTES,
                socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR_BYTES),
                socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        self._descriptors.extend(_descriptors_in(ancillary))
        if flags & socket.MSG_CTRUNC:
            raise InternalError(
                "descriptors were lost between the launcher's processes: too many open files"
            )
        self._incoming += data
        self.closed = not data
        return not self.closed

    def _whole_messages(self) -> Iterator[tuple[Message, tuple[int, ...]]]:
        position = 0
        while (end := self._end_of_frame(position)) <= len(self._incoming):
            body = self._incoming[position + _LENGTH_BYTES : end]
            message = marshal.loads(body)  # noqa: S302 - only our own processes write to it
            count = message.pop("descriptors", 0)
            yield message, tuple(self._descriptors.popleft() for _ in range(count))
            position = end
        del self._incoming[:position]

    def _end_of_frame(self, start: int) -> int:
        body = start + _LENGTH_BYTES
        length = int.from_bytes(self._incoming[start:body], "big")
        if length > MAXIMUM_FRAME:
            raise InternalError(f"a message of {length} bytes between the launcher's processes")
        return body + length


class HelperClient:
    """A helper process at the other end of a channel, as a source of the agent's events."""

    def __init__(self, channel: Channel, pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask it to."""
        self._channel = channel
        self._loop: Loop[Event] | None = None

    def fileno(self) -> int:
        return self._channel.fileno()

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process, until it is lost or closed."""
        self._loop = loop
        self._watch()

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        self._channel.flush()
        if not self.lost:
            yield from self._happened(now)
        self._watch()

    def _happened(self, now: float) -> Iterable[Event]:
        """Read what the process has sent; set ``lost`` if it has ended."""
        raise NotImplementedError

    def _send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._channel.send(message, descriptors)
        if self._channel.wants_write:
            self._watch()

    def _watch(self) -> None:
        if self._loop is None:
            return
        if self.lost or self.fileno() < 0:
            self._leave_loop()
        else:
            self._loop.watch(self.fileno(), self.events, writes=self._channel.wants_write)

    def _leave_loop(self) -> None:
        """Be waited for no more: to be called before the channel is closed."""
        if self._loop is not None:
            self._loop.forget(self.fileno())
            self._loop = None


def _encode(message: Message, count: int) -> bytes:
    fields = {**message, "descriptors": count} if count else message
    body = marshal.dumps(fields, MARSHAL_VERSION)
    if len(body) > MAXIMUM_FRAME:
        raise InternalError(f"a message of {len(body)} bytes between the launcher's processes")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def _ancillary(copies: tuple[int, ...]) -> list[tuple[int, int, bytes]]:
    if not copies:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(copies)}i", *copies))]


def _descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(data) // _DESCRIPTOR_BYTES
            yield from struct.unpack_from(f"{count}i", data)


def _close_all(descriptors: Sequence[int] | deque[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
