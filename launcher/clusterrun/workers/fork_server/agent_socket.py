"""The socket to the agent: whole messages, and the descriptors that come with them."""

from __future__ import annotations

import marshal
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any
else:
    import _socket as socket

_LENGTH_BYTES = 4
_DESCRIPTOR_BYTES = 4
_MARSHAL_VERSION = 2


def frame(kind: str, **message: object) -> bytes:
    body = marshal.dumps(dict(message, kind=kind), _MARSHAL_VERSION)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


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
