"""The socket to the agent: whole messages, and the descriptors that come with them."""

from __future__ import annotations

import _socket as socket
import marshal
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_LENGTH_BYTES = 4
_DESCRIPTOR_BYTES = 4
_MARSHAL_VERSION = 2


def frame(kind: str, **message: object) -> bytes:
    body = marshal.dumps(dict(message, kind=kind), _MARSHAL_VERSION)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def call_with_address(call: Callable[[str], object], path: str) -> None:
    """Bind or connect a socket to ``path``: the kernel takes 107 bytes, and TMPDIR may be longer.

    Raises:
        OSError: the folder does not exist, or what ``call`` raises.

    """
    folder = os.open(os.path.dirname(path), os.O_PATH)
    try:
        call(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)


def user_of(connection: socket.socket) -> int:
    """Return the effective user of the process at the other end (unix(7))."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[1])


class Frames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def add(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message whose last byte is in ``chunk``."""
        self._buffer += chunk
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[_LENGTH_BYTES:end], self._buffer[end:]
            yield marshal.loads(body)  # noqa: S302 - only our own processes write to it


class AgentSocket:
    """The server's end of the socketpair; blocking, as the agent always reads."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # While a worker's daemon holds it, the agent would not see the server's end.
        os.set_inheritable(descriptor, False)
        self._frames = Frames()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        """Return the messages that have arrived; None: the agent has closed its end or died.

        ``descriptors`` of a message holds those that came with it.
        """
        try:
            chunk, ancillary, _flags, _address = self._socket.recvmsg(
                1 << 16, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return None
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(_integers(data))
        messages = list(self._frames.add(chunk))
        for message in messages:
            count = message.get("descriptors", 0)
            if count:
                message["descriptors"] = self._descriptors[:count]
                del self._descriptors[:count]
        return messages if chunk else None

    def is_of_this_user(self) -> bool:
        """Tell whether the program that has connected is this user's."""
        return user_of(self._socket) == os.geteuid()

    def send(self, kind: str, **message: object) -> None:
        """Send one message; drop it if the agent is gone, which ``receive`` reports."""
        try:
            self._socket.sendall(frame(kind, **message))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        self._socket.close()


def _integers(data: bytes) -> list[int]:
    ends = range(_DESCRIPTOR_BYTES, len(data) + 1, _DESCRIPTOR_BYTES)
    return [int.from_bytes(data[end - _DESCRIPTOR_BYTES : end], "little") for end in ends]
