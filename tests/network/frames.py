"""Valid and invalid frames of the wire."""

import socket
import struct
from collections.abc import Iterator, Sequence
from random import Random

from clusterrun.network.channel import MAX_FRAME_BYTES, Channel, MessageT
from clusterrun.network.handshake import BadFrame
from clusterrun.policy import messages, outcome, queries
from msgspec import Struct
from msgspec.msgpack import Decoder, encode

from tests.network.nodes import done, hello, result
from tests.plans import world


def framed(message: Struct) -> bytes:
    """Return a message as it is sent on a connection without a token."""
    return as_frame(encode(message))


def as_frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def taken(decoder: Decoder[MessageT], buffer: bytearray) -> Iterator[MessageT]:
    """Yield the messages of complete frames, and remove the frames from ``buffer``."""
    while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
        body = bytes(buffer[4:end])
        del buffer[:end]
        yield decoder.decode(body)


def received(
    decoder: Decoder[MessageT], data: bytes, longest: int = MAX_FRAME_BYTES
) -> list[MessageT]:
    """Return the messages that a channel reads from ``data``.

    Raises:
        BadFrame: a frame is invalid.

    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(decoder, ours)
        channel.max_body_bytes = longest
        theirs.setblocking(False)
        unsent, found = memoryview(data), channel.receive()
        while unsent:
            unsent = unsent[theirs.send(unsent) :]
            found += channel.receive()
        theirs.close()
        while channel.end is None:
            found += channel.receive()
    return found


FAILED = result(1, 1, tail="ValueError: it", error='{"message": "it"}')
KILLED = result(
    3, exit_status=outcome.Killed(9), tail="RuntimeError: no", error='{"message": "no"}'
)
NOT_STARTED = result(1, exit_status=outcome.NotStarted("output", "no such file"))
HELPER_LOST = outcome.HelperFailed("relay", "was killed by SIGKILL", 9)

OF_MEMBERS: list[messages.FromMember] = [
    hello(1, rank=1, should={"script": "train.py"}),
    messages.FirstFailure(0, FAILED, at=0.25),
    messages.EndedExternally(0, outcome.Interrupted(15)),
    messages.EndedExternally(0, HELPER_LOST),
    messages.RanksSucceeded(0),
    messages.RanksExited(0, (messages.DatedExit(1, 0.5), messages.DatedExit(3, None))),
    done(0, [FAILED, KILLED, result(4)], outcome.OutputGone()),
    done(0, [NOT_STARTED]),
    done(0, [], outcome.Interrupted(15)),
    messages.Heartbeat(4.0),
    messages.Idle(0, 30.0),
    queries.Query(3, queries.Topic.NATIVE, 30.0, rank=2),
    queries.Answer(7, 1, "n1", b"\x91\x90"),
    messages.RequestStacks(),
    messages.Idle(0, 0.0, still=30.0),
    messages.Paused(paused=True),
]
OF_THE_COORDINATOR: list[messages.FromCoordinator] = [
    messages.Refused(messages.Refusal.TRY_NEXT_PORT, "another job", "Give each its own port."),
    messages.Notice("1 of 2 nodes have joined"),
    messages.WorldFormed(world(2), "n0"),
    messages.Stop(2, "rank 3 on n1 failed"),
    messages.Stop(2, "n1 got SIGTERM", outcome.Interrupted(15)),
    messages.Verdict(outcome.WorkerFailed(FAILED), "exit code 1 is final"),
    messages.Verdict(outcome.NodeLost(1, "n1"), ""),
    messages.Verdict(outcome.Succeeded(), ""),
    messages.NextAttempt(world(2, attempt=1), outcome.WorkerFailed(KILLED)),
    messages.HeartbeatAnswer(3.0, 2.5),
    queries.Query(7, queries.Topic.STACKS, 4.0),
    queries.Answer(7, 0, "n0", problem="has no py-spy"),
    queries.EndOfAnswers(
        3, (queries.MissingNode(2, "n2", "does not answer"),), 4, ("n5",), "waits"
    ),
    messages.Paused(paused=True),
]

FROM_A_MEMBER = [framed(message) for message in OF_MEMBERS]
FROM_A_COORDINATOR = [framed(message) for message in OF_THE_COORDINATOR]


def mutated(frame: bytes, changes: Sequence[tuple[int, int]], cut: int = 0) -> bytes:
    """Return a frame with some bytes changed, and the end cut off."""
    bytes_of = bytearray(frame)
    for position, byte in changes:
        bytes_of[position % len(bytes_of)] = byte
    return bytes(bytes_of[: len(bytes_of) - cut])


def strange(dice: Random, valid: Sequence[bytes]) -> Iterator[bytes]:
    """Yield frames without end: random ones, valid ones, and valid ones with some bytes changed.

    Half of the changed ones keep their length, so the frames that follow are read as well.
    """
    while True:
        body = dice.randbytes(dice.randrange(60))
        yield struct.pack(">I", dice.choice((len(body), dice.randrange(60)))) + body
        for number in range(6):
            frame = dice.choice(valid)
            changes = [(dice.randrange(1 << 12), dice.randrange(256)) for _ in range(number)]
            if number % 2:
                yield frame[:4] + mutated(frame[4:], changes)
            else:
                yield mutated(frame, changes)


def messages_in(decoder: Decoder[MessageT], data: bytes, longest: int = MAX_FRAME_BYTES) -> int:
    """Return the number of messages in ``data``; -1 if it is invalid."""
    try:
        return len(received(decoder, data, longest))
    except BadFrame:
        return -1
