"""What the client and a host's starter send each other over ssh's standard input and output.

A frame is a kind (one byte), a length (four bytes, the highest first) and as many bytes.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

LONGEST = 16 << 20
"""Bytes; a longer frame is none of ours."""

_HEAD = struct.Struct(">BI")


class Kind(IntEnum):
    """What a frame is."""

    JOB = 1
    """To the starter, at first: the job, as ``HostJob`` in JSON."""
    START = 2
    """To the starter: start the agent, as all hosts are ready."""
    SIGNAL = 3
    """To the starter: a signal for the agent, in decimal digits."""
    HEARTBEAT = 4
    """To and from the starter: the sender lives; every second, or four in a heartbeat timeout."""
    READY = 5
    """From the starter: folder, interpreter, script and options have been checked."""
    REFUSED = 6
    """From the starter: the job cannot start on this host, as ``Refusal`` in JSON."""
    OUT = 7
    """From the starter: a part of the agent's standard output."""
    ERR = 8
    """From the starter: a part of the agent's standard error."""
    ENDED = 9
    """From the starter, the last one: how the agent ended, as ``AgentEnd`` in JSON."""


_KINDS = frozenset(map(int, Kind))


class Frame(NamedTuple):
    """One frame that was received."""

    kind: Kind
    content: bytes


class NotAFrame(ValueError):
    """The bytes are those of another program."""


def frame(kind: Kind, content: bytes = b"") -> bytes:
    """Return the bytes to send."""
    return _HEAD.pack(kind, len(content)) + content


class FrameReader:
    """Takes bytes as they arrive, and returns the frames that are whole."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes.

        Raises:
            NotAFrame: what was received is not one.

        """
        self._received += data
        while len(self._received) >= _HEAD.size:
            number, length = _HEAD.unpack_from(self._received)
            if number not in _KINDS or length > LONGEST:
                raise NotAFrame
            end = _HEAD.size + length
            if len(self._received) < end:
                return
            content = bytes(self._received[_HEAD.size : end])
            del self._received[:end]
            yield Frame(Kind(number), content)
