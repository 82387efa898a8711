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

LENGTH_BYTES = 4
MARSHAL_VERSION = 2
"""Which every Python from 3.8 on reads and writes alike."""

_DESCRIPTOR_BYTES = 4


def frame(kind: str, **message: object) -> bytes:
    """Return a message as it travels."""
    body = marshal.dumps(dict(message, kind=kind), MARSHAL_VERSION)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class Frames:
    """Takes a stream of frames apart."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._buffer = b""

    def add(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Yield every message whose last byte has arrived with ``chunk``."""
        self._buffer += chunk
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
            if len(self._buffer) < end:
                return
            body, self._buffer = self._buffer[LENGTH_BYTES:end], self._buffer[end:]
            yield marshal.loads(body)  # noqa: S302 - the agent's own words


class AgentSocket:
    """The server's end of the socketpair; blocking, as the agent always reads."""

    def __init__(self, descriptor: int) -> None:
        """Take the socket that the agent has left open in this process."""
        self._socket = socket.socket(fileno=descriptor)
        # A worker's daemon that held it would hide our end from the agent.
        os.set_inheritable(descriptor, False)
        self._frames = Frames()
        self._descriptors: list[int] = []

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        """Return what the agent has sent, with ``descriptors`` where some came; None: it is gone."""
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
        """Send one message; if the agent is gone, its end of the socket will tell."""
        try:
            self._socket.sendall(frame(kind, **message))
        except (BrokenPipeError, ConnectionResetError):
            pass

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _integers(data: bytes) -> list[int]:
    ends = range(_DESCRIPTOR_BYTES, len(data) + 1, _DESCRIPTOR_BYTES)
    return [int.from_bytes(data[end - _DESCRIPTOR_BYTES : end], "little") for end in ends]
