"""Valid and invalid frames of the wire."""

import struct
from collections.abc import Iterator, Sequence
from random import Random

from clusterrun.coordination.messages import (
    AllStacks,
    EndedExternally,
    Failing,
    Idle,
    NextAttempt,
    Notice,
    Refusal,
    Refused,
    RequestStacks,
    SendStacks,
    Stacks,
    Stop,
    Suspension,
    Verdict,
    WorldFormed,
    done,
)
from clusterrun.domain.outcome import (
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    NotStarted,
    OutputGone,
    Succeeded,
    WorkerFailed,
)
from clusterrun.domain.stacks import StackGroup
from clusterrun.rendezvous.wire.frames import (
    HEARTBEAT_FRAME,
    MAXIMUM_FRAME,
    BadFrame,
    Codec,
    MessageT,
    framed,
)

from tests.plans import world
from tests.rendezvous.nodes import fate, hello

GROUP = StackGroup((1, 2), 'File "train.py", line 3, in step')
FAILED = fate(1, 1, tail="ValueError: it", error='{"message": "it"}')

FROM_A_MEMBER = [
    framed(hello(1, rank=1, should={"script": "train.py"})),
    framed(Failing(0, FAILED, 0.5)),
    framed(EndedExternally(0, Interrupted(15))),
    framed(EndedExternally(0, HelperFailed("relay", "was killed by SIGKILL", 9))),
    framed(done(0, [FAILED, fate(1, ending=Killed(9))], 2000.0, OutputGone())),
    framed(done(0, [fate(1, ending=NotStarted("output", "no such file"))], 0.0, None)),
    HEARTBEAT_FRAME,
    framed(RequestStacks(0)),
    framed(Stacks(0, 1, (GROUP,))),
    framed(Idle(0, 30.0)),
    framed(Suspension(suspended=True)),
]

FROM_A_COORDINATOR = [
    framed(Refused(Refusal.GIVE_UP, "two nodes have node rank 1", "Give each its own.")),
    framed(Notice("still running: n1")),
    framed(WorldFormed(world(2), "n0")),
    framed(Stop(0, "rank 1 on n1 failed")),
    framed(Verdict(WorkerFailed(FAILED), "")),
    framed(Verdict(NodeLost(1, "n1"), "no restart")),
    framed(Verdict(Succeeded(), "")),
    framed(NextAttempt(world(2, attempt=1), WorkerFailed(FAILED))),
    HEARTBEAT_FRAME,
    framed(SendStacks(0, 1, 0.0, "n1")),
    framed(AllStacks((GROUP,), ("node 2 (n2)",))),
    framed(Suspension(suspended=True)),
]


def mutated(frame: bytes, changes: Sequence[tuple[int, int]], cut: int = 0) -> bytes:
    """Return a frame with some bytes changed, and the end cut off."""
    bytes_of = bytearray(frame)
    for position, byte in changes:
        bytes_of[position % len(bytes_of)] = byte
    return bytes(bytes_of[: len(bytes_of) - cut])


def strange(dice: Random, valid: Sequence[bytes]) -> Iterator[bytes]:
    """Yield frames without end: random ones, right ones, and right ones with some bytes changed.

    Of the changed ones, half keep their length, so that what stands behind them is reached.
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


def messages_in(codec: Codec[MessageT], data: bytes, longest: int = MAXIMUM_FRAME) -> int:
    """Return the number of messages in ``data``; -1 if it is invalid."""
    try:
        return len(list(codec.take(bytearray(data), longest)))
    except BadFrame:
        return -1
