"""Messages as bytes: a frame is the length of its body (4 bytes, big-endian) and the body, msgpack."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

from clusterrun.policy.messages import FromCoordinator, FromMember

MAXIMUM_FRAME = 1 << 22
"""Bytes of one message: above the longest of ours, a report of 10,000 workers."""

LONGEST_HELLO = 1 << 16
"""Bytes of the first message on a connection, which may come from anywhere."""

_LENGTH_BYTES = 4

MessageT = TypeVar("MessageT")


class BadFrame(Exception):
    """The other side sent bytes that no clusterrun sends."""


class Codec(Generic[MessageT]):
    """Decodes the messages of one direction."""

    def __init__(self, messages: object) -> None:
        """Accept the messages of a union."""
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(messages)

    def take(self, buffer: bytearray, longest: int = MAXIMUM_FRAME) -> Iterator[MessageT]:
        """Yield each message that is complete, and remove it from ``buffer``.

        Raises:
            BadFrame: a message has more than ``longest`` bytes, or cannot be decoded.

        """
        while len(buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "big")
            if end - _LENGTH_BYTES > longest:
                raise BadFrame(f"sent a message of {end - _LENGTH_BYTES} bytes")
            if len(buffer) < end:
                return
            body = bytes(buffer[_LENGTH_BYTES:end])
            del buffer[:end]
            yield self._decode(body)

    def _decode(self, body: bytes) -> MessageT:
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BadFrame("sent bytes that are no message of clusterrun's") from error


FROM_MEMBERS: Codec[FromMember] = Codec(FromMember)
FROM_COORDINATOR: Codec[FromCoordinator] = Codec(FromCoordinator)


def framed(message: FromMember | FromCoordinator) -> bytes:
    """Return a message as bytes; ``policy.fates.bounded`` keeps it below ``MAXIMUM_FRAME``."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body
