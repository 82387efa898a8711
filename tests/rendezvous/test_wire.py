"""Messages in frames: what was sent is heard, and nothing else is believed."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.domain.outcome import HelperFailed, Interrupted, Killed, NodeLost, WorkerFailed
from launcher.domain.ranks import GlobalRank, NodeRank
from launcher.domain.stacks import StackGroup
from launcher.domain.world import World
from launcher.rendezvous.wire import (
    FROM_COORDINATOR,
    FROM_MEMBERS,
    LONGEST_HELLO,
    MAXIMUM_FRAME,
    Again,
    AgedFate,
    Alive,
    AskStacks,
    BadFrame,
    Disturbed,
    Done,
    Failing,
    FromCoordinator,
    FromMember,
    GiveStacks,
    Refusal,
    Refused,
    Stacks,
    StacksOfAll,
    Still,
    Stop,
    Verdict,
    Waiting,
    WorldFormed,
    framed,
)
from tests.rendezvous.nodes import fate, hello

WORLD = World(
    run_id="run",
    attempt=0,
    node_rank=NodeRank(1),
    nodes=2,
    first_rank=GlobalRank(4),
    local_size=2,
    size=6,
    first_role_rank=GlobalRank(1),
    role_size=3,
    master_addr="n0",
    master_port=29500,
)
KILLED = fate(3, ending=Killed(9), tail="RuntimeError: no", error='{"message": "no"}')

OF_MEMBERS: list[FromMember] = [
    hello(1, rank=1, should={"script": "train.py"}),
    Failing(0, KILLED, age=0.25),
    Disturbed(0, Interrupted(2)),
    Disturbed(0, HelperFailed("relay", "was killed by SIGKILL", 9)),
    Done(0, (AgedFate(KILLED, 1.0), AgedFate(fate(4), 0.5)), None),
    Done(0, (), Interrupted(15)),
    Alive(),
    AskStacks(0),
    Stacks(1, 7, (StackGroup((0, 4), "  File f"), StackGroup((5,), "no handler", found=False))),
    Still(0, 60.0),
]
OF_THE_COORDINATOR: list[FromCoordinator] = [
    Refused(Refusal.TRY_ELSEWHERE, "another job", "another port"),
    Waiting("waiting for 1 of 2 nodes"),
    WorldFormed(WORLD, "n0"),
    Stop(2, "rank 3 on n1 failed"),
    Alive(),
    GiveStacks(0, 7, 60.0, "n1"),
    StacksOfAll((StackGroup((0, 4), "  File f"),), ("node 3 (n3)",)),
    Again(WORLD, WorkerFailed(KILLED)),
    Verdict(WorkerFailed(KILLED), "exit code 3 is final"),
    Verdict(NodeLost(1, "n1"), ""),
]


@pytest.mark.parametrize("message", OF_MEMBERS)
def test_what_members_say_arrives_as_it_was(message: FromMember) -> None:
    """Every field, through msgpack and back."""
    buffer = bytearray(framed(message))

    assert list(FROM_MEMBERS.take(buffer)) == [message]
    assert not buffer


@pytest.mark.parametrize("message", OF_THE_COORDINATOR)
def test_what_the_coordinator_says_arrives_as_it_was(message: FromCoordinator) -> None:
    """The other way, too."""
    assert list(FROM_COORDINATOR.take(bytearray(framed(message)))) == [message]


@given(st.lists(st.integers(1, 60), max_size=30))
def test_frames_may_come_in_any_pieces(sizes: list[int]) -> None:
    """TCP keeps the order of bytes, and nothing else."""
    stream = b"".join(framed(message) for message in OF_MEMBERS)
    buffer, heard = bytearray(), []

    for size in [*sizes, len(stream)]:
        buffer += stream[:size]
        stream = stream[size:]
        heard += list(FROM_MEMBERS.take(buffer))

    assert heard == OF_MEMBERS


@pytest.mark.parametrize("length", [MAXIMUM_FRAME + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_length_beyond_the_bound_is_refused_before_it_has_come(length: int) -> None:
    """Nobody makes an agent set a gigabyte aside."""
    with pytest.raises(BadFrame, match=f"sent a message of {length} bytes"):
        list(FROM_MEMBERS.take(bytearray(length.to_bytes(4, "big"))))


def test_who_is_not_known_yet_may_say_less() -> None:
    """The bound of a first message is tighter than that of a report."""
    frame = bytearray((LONGEST_HELLO + 1).to_bytes(4, "big"))

    assert list(FROM_MEMBERS.take(frame)) == []
    with pytest.raises(BadFrame):
        list(FROM_MEMBERS.take(frame, LONGEST_HELLO))


def test_the_longest_message_is_heard() -> None:
    """The bound itself is inside."""
    message = Failing(0, fate(0, 1, tail=""), 0.0)
    room = MAXIMUM_FRAME - len(framed(message)) - 100
    message = Failing(0, fate(0, 1, tail="x" * room), 0.0)

    assert list(FROM_MEMBERS.take(bytearray(framed(message)))) == [message]


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for(garbage: bytes) -> None:
    """Whatever comes: messages, none, or a refusal; never another error."""
    buffer = bytearray(len(garbage).to_bytes(4, "big") + garbage)

    with pytest.raises(BadFrame, match="no message of clusterrun's"):
        list(FROM_MEMBERS.take(buffer))


@given(st.data())
def test_a_damaged_message_is_refused_or_another_message(data: st.DataObject) -> None:
    """One byte is changed on the way."""
    frame = bytearray(framed(data.draw(st.sampled_from(OF_MEMBERS))))
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] = data.draw(st.integers(0, 255))

    try:
        heard = list(FROM_MEMBERS.take(frame))
    except BadFrame:
        heard = []

    assert len(heard) <= 1


def test_nesting_without_end_is_refused() -> None:
    """A deep value must not exhaust the stack of the decoder."""
    body = b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 60_000

    with pytest.raises(BadFrame):
        list(FROM_MEMBERS.take(bytearray(len(body).to_bytes(4, "big") + body)))


def test_a_member_can_not_speak_as_the_coordinator() -> None:
    """Each direction has its own messages."""
    with pytest.raises(BadFrame):
        list(FROM_MEMBERS.take(bytearray(framed(Stop(0, "because")))))


@pytest.mark.parametrize(
    "wrong",
    [{"rank": -1}, {"workers": 0}, {"host": "h" * 256}, {"pid": "12"}, {"must": {"nnodes": 2}}],
)
def test_what_can_not_be_is_not_believed(wrong: dict[str, object]) -> None:
    """A negative rank, no workers, a host name longer than any."""
    fields = msgspec.to_builtins(hello(1)) | wrong
    body = msgspec.msgpack.encode(fields)

    with pytest.raises(BadFrame):
        list(FROM_MEMBERS.take(bytearray(len(body).to_bytes(4, "big") + body)))
