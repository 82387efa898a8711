"""Messages with file descriptors between the launcher's processes: agent, fork server, relay.

A frame is its length (4 bytes, big-endian) and a marshalled tuple: the number of descriptors, the number
of the message's type (see ``messages``), and its fields. (Importing ``json`` would take 10 ms.) The
descriptors are sent with the frame's first byte (SCM_RIGHTS), so a complete frame has all of them.
"""

from __future__ import annotations

import _socket as socket  # the module ``socket`` takes 6 ms to import
import errno
import marshal
import os
import select
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Generic, NamedTuple, TypeVar

    MessageT = TypeVar("MessageT", bound=NamedTuple)
    SentT = TypeVar("SentT", bound=NamedTuple)
    TakenT = TypeVar("TakenT", bound=NamedTuple)
else:
    SentT = TakenT = None

    class Generic:
        """A stub for ``typing.Generic``, because ``typing`` takes 10 ms to import."""

        def __class_getitem__(cls, _types: object) -> type:
            return cls


MAXIMUM_FRAME = 16 << 20
"""Bytes: far more than any message has, and far less than would harm the agent."""

MARSHAL_VERSION = 2
"""All Pythons from 3.8 on read and write it: the server may run another version than the agent."""

_LENGTH_BYTES = 4
_READ_BYTES = 256 << 10
_DESCRIPTOR_BYTES = struct.calcsize("i")
_MAX_DESCRIPTORS = 253
"""The kernel's SCM_MAX_FD: the limit for one sendmsg."""


class ChannelError(Exception):
    """A frame is too large, or its descriptors were lost: one of the two processes is broken."""


class HelperChannel(Generic[SentT, TakenT]):
    """One end of a socket pair that carries messages both ways; never blocks.

    It owns ``sock``. ``sends`` and ``takes`` are the message types of each direction; the peer has the
    same tuples, exchanged. When the peer dies, ``closed`` is set and later messages are dropped.
    """

    def __init__(
        self,
        sock: socket.socket,
        sends: tuple[type[SentT], ...],
        takes: tuple[type[TakenT], ...],
    ) -> None:
        sock.settimeout(0)
        self.closed = False
        self._sends, self._takes = sends, takes
        self._socket = sock
        self._outgoing: list[tuple[memoryview, tuple[int, ...]]] = []
        self._incoming = bytearray()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether ``flush`` must be called when the socket becomes writable."""
        return bool(self._outgoing)

    def send(self, message: SentT, descriptors: Sequence[int] = ()) -> None:
        """Send ``message`` with duplicates of ``descriptors``, or queue it while the socket is full.

        The caller may close its descriptors at once.

        Raises:
            ChannelError: the message is larger than ``MAXIMUM_FRAME``.

        """
        if self.closed:
            return
        data = memoryview(frame(self._sends, message, len(descriptors)))
        self._outgoing.append((data, tuple(map(os.dup, descriptors))))
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket takes without blocking."""
        while self._outgoing and self._send_some(*self._outgoing[0]):
            pass

    def receive(self) -> list[tuple[TakenT, tuple[int, ...]]]:
        """Return all complete messages, each with its descriptors, which the caller must close.

        Once the peer has closed its end or died, ``closed`` is set, and its last messages are returned.

        Raises:
            ChannelError: a frame is too large, or descriptors were lost (too many open files).

        """
        while self._receive_some():
            pass
        received = []
        for message, count in take_messages(self._takes, self._incoming):
            received.append((message, tuple(self._descriptors[:count])))
            del self._descriptors[:count]
        return received

    def shutdown_write(self) -> None:
        """Let the peer read the end of file; its messages can still be received."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer is gone

    def peer_is_gone(self) -> bool:
        """Tell whether the peer has closed its end or died, not just called ``shutdown_write``."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return any(found & select.POLLHUP for _, found in poll.poll(0))

    def close(self) -> None:
        """Close the socket and the descriptors of messages not yet returned; drop the queue."""
        self.closed = True
        self._drop_outgoing()
        _close_all(self._descriptors)
        self._descriptors.clear()
        self._socket.close()

    def _send_some(self, data: memoryview, copies: tuple[int, ...]) -> bool:
        rights = struct.pack(f"{len(copies)}i", *copies)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if copies else []
        try:
            sent = self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._drop_outgoing()
            return False
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            # The user's limit of descriptors in flight: some must be received first.
            return False
        _close_all(copies)
        if sent < len(data):
            self._outgoing[0] = (data[sent:], ())
        else:
            del self._outgoing[0]
        return True

    def _drop_outgoing(self) -> None:

        for _, copies in self._outgoing:
            _close_all(copies)
        self._outgoing.clear()

    def _receive_some(self) -> bool:
        if self.closed:
            return False
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_BYTES,
                socket.CMSG_SPACE(_MAX_DESCRIPTORS * _DESCRIPTOR_BYTES),
                socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data, ancillary, flags = b"", [], 0
        for level, kind, rights in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                count = len(rights) // _DESCRIPTOR_BYTES
                self._descriptors.extend(struct.unpack_from(f"{count}i", rights))
        if flags & socket.MSG_CTRUNC:
            raise ChannelError(
                "descriptors were lost between the launcher's processes: too many open files"
            )
        self._incoming += data
        self.closed = not data
        return not self.closed


def frame(types: Sequence[type[MessageT]], message: MessageT, descriptors: int = 0) -> bytes:
    """Return the bytes of one message, with which so many descriptors travel.

    Raises:
        ChannelError: it is larger than ``MAXIMUM_FRAME``.

    """
    fields = (descriptors, types.index(type(message)), *message)
    body = marshal.dumps(fields, MARSHAL_VERSION)
    _check_length(len(body))
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def take_messages(
    types: Sequence[type[MessageT]], incoming: bytearray
) -> Iterator[tuple[MessageT, int]]:
    """Remove the complete messages from ``incoming``; yield each with its number of descriptors.

    Raises:
        ChannelError: a frame is larger than ``MAXIMUM_FRAME``.

    """
    while True:
        length = int.from_bytes(incoming[:_LENGTH_BYTES], "big")
        _check_length(length)
        end = _LENGTH_BYTES + length
        if end > len(incoming):
            return
        body = incoming[_LENGTH_BYTES:end]
        del incoming[:end]
        # Only the launcher's own processes write to it.
        descriptors, number, *fields = marshal.loads(body)  # noqa: S302
        yield types[number](*fields), descriptors


def _check_length(length: int) -> None:
    if length > MAXIMUM_FRAME:
        raise ChannelError(f"a message of {length} bytes between the launcher's processes")


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
