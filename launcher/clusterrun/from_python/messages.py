"""What the caller and the agent of its job send each other, over a socket pair.

Bodies are marshalled: paths, options and reports may hold bytes that are no UTF-8, which JSON and
MessagePack refuse.
"""

import marshal
import socket
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
from msgspec import Struct

from clusterrun.policy.outcome import Outcome

_LENGTH_BYTES = 8


class Request(Struct, frozen=True, array_like=True):
    """What to run: sent once, by the caller."""

    options: dict[str, tuple[tuple[str, str], ...]]
    """Texts of options by name, each with its origin."""
    name: str
    """The function's, for ``ps`` and for messages."""
    call: bytes
    """As ``pickled_call`` returns it."""
    warm_socket: str
    """The socket of the caller's own warm fork server; "": it has none."""


class JobEnded(Struct, frozen=True, tag=True):
    """All workers have ended; their results are in ``folder`` until the caller has answered."""

    outcome: Outcome
    report: str
    """What the command would have printed; "" after a success."""
    folder: str


class AgentEnds(Struct, frozen=True, tag=True):
    """The agent's last message: its exit code, and what could not be printed."""

    exit_code: int
    text: str


class NotRun(Struct, frozen=True, tag=True):
    """The job could not be run: a ``LauncherError`` of this class."""

    kind: str
    message: str
    hint: str


Reply = JobEnded | AgentEnds | NotRun


def send_request(control: socket.socket, request: Request) -> None:
    """Send the request; blocks until the agent has read it.

    Raises:
        OSError: the agent has ended.

    """
    options = marshal.dumps((request.options, request.name, request.warm_socket))
    for body in (options, request.call):
        control.sendall(_length(body))
        control.sendall(body)


def receive_request(control: socket.socket) -> Request:
    """Wait for the request, and return it.

    Raises:
        EOFError: the caller has gone.

    """
    with control.makefile("rb") as stream:
        options, call = _read_body(stream), _read_body(stream)
    asked, name, warm_socket = marshal.loads(options)  # noqa: S302 - the caller wrote it
    return Request(asked, name, call, warm_socket)


def _read_body(stream: BinaryIO) -> bytes:
    length = stream.read(_LENGTH_BYTES)
    body = stream.read(int.from_bytes(length, "big"))
    if not body:
        raise EOFError("the caller has ended")
    return body


def send_reply(control: socket.socket, reply: Reply) -> None:
    """Send one reply.

    Raises:
        OSError: the caller has gone.

    """
    body = marshal.dumps(msgspec.to_builtins(reply))
    control.sendall(_length(body) + body)


class Replies:
    """Splits what the agent has sent into replies."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of a reply that is not whole yet."""

    def add(self, data: bytes) -> Iterator[Reply]:
        """Yield every reply whose last byte is in ``data``."""
        self.rest += data
        while len(self.rest) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self.rest[:_LENGTH_BYTES], "big")
            if len(self.rest) < end:
                return
            body, self.rest = self.rest[_LENGTH_BYTES:end], self.rest[end:]
            yield msgspec.convert(marshal.loads(body), Reply)  # noqa: S302 - the agent wrote it


def _length(body: bytes) -> bytes:
    return len(body).to_bytes(_LENGTH_BYTES, "big")
