"""What the commands of a user and an agent send each other: one request, one answer."""

import msgspec
from msgspec import Struct

from clusterrun.domain.bounds import Count, Line, Name, ProcessId, RunId, Size


class Describe(Struct, frozen=True, tag=True):
    """Asks which job the agent is part of; a ``Description`` answers."""


class Suspend(Struct, frozen=True, tag=True):
    """Asks for a suspension of the job; a ``Description`` answers once it is asked for."""


Request = Describe | Suspend


class Description(Struct, frozen=True, tag=True):
    """The job of an agent."""

    run_id: RunId
    host: Name
    pid: ProcessId
    node_rank: Count
    nodes: Size
    program: Line
    """The name of what it runs."""


_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)


def encode(message: Request | Description) -> bytes:
    """Return the message; its end is the end of the connection's stream."""
    return msgspec.msgpack.encode(message)


def decode_request(data: bytes) -> Request:
    """Return the request.

    Raises:
        ValueError: ``data`` is none.

    """
    return _REQUESTS.decode(data)


def decode_description(data: bytes) -> Description:
    """Return the description.

    Raises:
        ValueError: ``data`` is none.

    """
    return msgspec.msgpack.decode(data, type=Description)
