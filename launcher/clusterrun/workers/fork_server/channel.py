"""Messages with file descriptors between the launcher's processes: agent, fork server, relay.

A frame is its length (4 bytes, big-endian) and a marshalled tuple (``json`` would cost each start of the
fork server 10 ms): the number of descriptors, that of the message's type (see ``messages``), and its
fields. The descriptors travel with the frame's first byte (SCM_RIGHTS): when it is whole, all have arrived.
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
        """Stands for that of ``typing``, which takes 10 ms to import."""

        def __class_getitem__(cls, _types: object) -> type:
            return cls


MAXIMUM_FRAME = 16 << 20
"""Bytes of one message: far above any message, far below what harms the agent."""

MARSHAL_VERSION = 2
"""Python 3.8 and newer read and write it alike: workers have an interpreter of their own."""

_LENGTH_BYTES = 4
_READ_BYTES = 256 << 10
_DESCRIPTOR_BYTES = struct.calcsize("i")
_MAX_DESCRIPTORS = 253
"""SCM_MAX_FD of the kernel: the most that one sendmsg can carry."""


class ChannelError(Exception):
    """A frame is too large, or its descriptors were lost: one of the two processes is broken."""


class HelperChannel(Generic[SentT, TakenT]):
    """One end of a socket pair that carries messages both ways; never blocks.

    Takes over ``sock``. The peer takes what this end ``sends``, in the same order. Its death raises no
    error: it sets ``closed``, and what is sent from then on is dropped.
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
        """Send ``message`` with copies of ``descriptors``, or queue what does not fit.

        The caller keeps its descriptors and may close them at once.

        Raises:
            ChannelError: the message is larger than ``MAXIMUM_FRAME``.

        """
        if self.closed:
            return
        data = memoryview(frame(self._sends, message, len(descriptors)))
        # Duplicates: the frame may wait here after the caller has closed its own.
        self._outgoing.append((data, tuple(map(os.dup, descriptors))))
        self.flush()

    def flush(self) -> None:
        """Send as much of what is queued as the socket takes now."""
        while self._outgoing and self._send_some(*self._outgoing[0]):
            pass

    def receive(self) -> list[tuple[TakenT, tuple[int, ...]]]:
        """Return all messages that are whole now, each with its descriptors, which the caller closes.

        Sets ``closed`` once the peer has closed or died, and returns what it sent before that.

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
        """Have the peer see the end; what it sends can still be received."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the peer is gone

    def peer_is_gone(self) -> bool:
        """Return whether the peer has closed its end or died: one that sends no more may still read."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return any(found & select.POLLHUP for _, found in poll.poll(0))

    def close(self) -> None:
        """Close the socket and the descriptors that were not taken; drop what is queued."""
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
            # So many descriptors of this user's are on their way: some must be received first.
            return False
        _close_all(copies)
        if sent < len(data):
            self._outgoing[0] = (data[sent:], ())
        else:
            del self._outgoing[0]
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
    """Take the messages that are whole out of what has come in, each with its number of descriptors.

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
        # Only our own processes write to it.
        descriptors, number, *fields = marshal.loads(body)  # noqa: S302
        yield types[number](*fields), descriptors


def _check_length(length: int) -> None:
    if length > MAXIMUM_FRAME:
        raise ChannelError(f"a message of {length} bytes between the launcher's processes")


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
