"""What agents say to each other: typed messages in msgpack, in frames of bounded length.

A frame is the length of its body (4 bytes, big-endian) and the body. Times never travel, ages do:
no two clocks need agree. What a value may be is said by its type (``clusterrun.domain.bounds``); a
message with any other value is refused, so that nothing behind the codec has to check it again.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from clusterrun.domain.bounds import (
    Count,
    Line,
    Name,
    ProcessId,
    RunId,
    Seconds,
    Text,
)
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Reason,
)
from clusterrun.domain.stacks import StackGroup
from clusterrun.domain.world import World

MAXIMUM_FRAME = 1 << 22
"""Bytes of one message: above any of ours, of which one tells how 10,000 workers ended."""

LONGEST_HELLO = 1 << 16
"""Bytes of the first message of somebody who may be anybody."""

_LENGTH_BYTES = 4


ARGUMENTS = "arguments"
"""The name in ``Hello.should`` whose value is a digest.

Arguments may hold secrets, and whoever answers at node 0's address hears a ``Hello``.
"""


class Hello(Struct, frozen=True, tag=True):
    """A member introduces itself."""

    identity: Name
    """Random, one for each agent: tells an agent that has reached itself."""
    run_id: RunId
    """"" where none was given: then node 0's holds."""
    user_id: Annotated[int, Meta(ge=0, lt=1 << 32)]
    host: Name
    pid: ProcessId
    rank: Count | None
    """None: any that is free."""
    workers: Annotated[int, Meta(ge=1, le=1 << 20)]
    must: dict[Name, Line]
    """What all nodes must say alike, by name."""
    should: dict[Name, Line]
    """What they had better say alike."""
    waited: Seconds = 0.0
    """Seconds since it began to call node 0."""
    role: Name = "default"
    """Of its workers: ranks are counted within a role, too."""


class Failing(Struct, frozen=True, tag=True):
    """The first worker of this node failed, ``age`` seconds ago; more may follow in ``Done``."""

    attempt: Count
    fate: Fate
    age: Seconds


class EndedExternally(Struct, frozen=True, tag=True):
    """Something other than a worker ends the job on this node."""

    attempt: Count
    external_cause: ExternalCause


class AgedFate(Struct, frozen=True):
    """A worker that ended ``age`` seconds ago."""

    fate: Fate
    age: Seconds


class Done(Struct, frozen=True, tag=True):
    """No worker of this node is left; ``external_cause`` is what ended them, if no worker did."""

    attempt: Count
    fates: tuple[AgedFate, ...]
    external_cause: ExternalCause | None


class Alive(Struct, frozen=True, tag=True):
    """Nothing to say, and here all the same; node 0 answers each with one of its own."""


class AskStacks(Struct, frozen=True, tag=True):
    """A user of this node wants to know where all ranks of all nodes are."""

    attempt: Count


class Stacks(Struct, frozen=True, tag=True):
    """The answer to a ``GiveStacks``, by global rank."""

    attempt: Count
    number: Count
    groups: tuple[StackGroup, ...]


class Still(Struct, frozen=True, tag=True):
    """No worker of this node has printed or ended for so many seconds; 0: one has again."""

    attempt: Count
    seconds: Seconds


AboutStacks = AskStacks | Stacks | Still


class Suspension(Struct, frozen=True, tag=True):
    """This agent is about to be stopped by its user, and is silent on purpose; or goes on again.

    From the coordinator: node 0's agent.
    """

    suspended: bool


FromMember = Hello | Failing | EndedExternally | Done | Alive | AboutStacks | Suspension


class Refusal(Enum):
    """What a refused member is to do about it."""

    TRY_ELSEWHERE = "elsewhere"
    """This is not your job: it may meet at the next place."""

    GIVE_UP = "give up"
    """This is your job, and it can't go on."""

    IT_IS_YOU = "you"
    """You have reached yourself."""


class Refused(Struct, frozen=True, tag=True):
    """You can't come in: ``text`` says why, ``hint`` what to type."""

    refusal: Refusal
    text: Line
    hint: Text


class Waiting(Struct, frozen=True, tag=True):
    """A line for people: for whom the job waits."""

    text: Line


class WorldFormed(Struct, frozen=True, tag=True):
    """All are there: your place, and the host of node 0."""

    world: World
    host: Name


class Stop(Struct, frozen=True, tag=True):
    """The attempt ends: stop your workers."""

    attempt: Count
    why: Line
    external_cause: ExternalCause | None = None
    """What ends the whole job, if it came from outside its workers."""


class Verdict(Struct, frozen=True, tag=True):
    """All nodes are done: the one reason that all of them report."""

    reason: Reason
    no_restart: Line
    """As in ``Outcome``."""


class Again(Struct, frozen=True, tag=True):
    """All nodes are done, and begin anew: your place, and why the last attempt ended."""

    world: World
    reason: Reason


class GiveStacks(Struct, frozen=True, tag=True):
    """Tell the stacks of your workers."""

    attempt: Count
    number: Count
    still_for: Seconds
    """Nothing has moved anywhere for so many seconds; 0: a user wants to know."""
    host: Name
    """Where that user asked; "" on node 0."""


class StacksOfAll(Struct, frozen=True, tag=True):
    """For node 0: the stacks of all ranks, and the nodes that did not tell theirs."""

    groups: tuple[StackGroup, ...]
    missing: tuple[Line, ...]


FromCoordinator = (
    Refused
    | Waiting
    | WorldFormed
    | Stop
    | Verdict
    | Again
    | Alive
    | GiveStacks
    | StacksOfAll
    | Suspension
)

MessageT = TypeVar("MessageT")


class BadFrame(Exception):
    """The other side says what no clusterrun would."""


class Codec(Generic[MessageT]):
    """Takes messages of one direction out of the bytes that have come."""

    def __init__(self, messages: object) -> None:
        """Take the union of the messages that may come."""
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(messages)

    def take(self, buffer: bytearray, longest: int = MAXIMUM_FRAME) -> Iterator[MessageT]:
        """Yield, and cut off from ``buffer``, every message that is whole.

        Raises:
            BadFrame: it is of more than ``longest`` bytes, or no message.

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
            raise BadFrame("sent what is no message of clusterrun's") from error


FROM_MEMBERS: Codec[FromMember] = Codec(FromMember)
FROM_COORDINATOR: Codec[FromCoordinator] = Codec(FromCoordinator)


def framed(message: FromMember | FromCoordinator) -> bytes:
    """Return ``message`` as it travels; who sends it keeps it below ``MAXIMUM_FRAME``."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


ALIVE = framed(Alive())
"""As it travels, thousands of times."""
