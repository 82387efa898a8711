"""Messages in frames: valid ones are received, all others are refused."""

from collections.abc import Iterator
from typing import get_args

import msgspec
import pytest
from clusterrun.bounds import as_name
from clusterrun.network.channel import FROM_COORDINATOR, FROM_MEMBERS
from clusterrun.network.handshake import BadFrame
from clusterrun.network.joining_node import bounded_value
from clusterrun.policy import answers, messages, outcome, queries
from clusterrun.policy.results import bounded
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.msgpack import encode

from tests.network.frames import KILLED, OF_THE_COORDINATOR, as_frame, framed, received
from tests.network.nodes import hello, result
from tests.plans import world


@pytest.mark.parametrize("message", OF_THE_COORDINATOR)
def test_coordinator_message_is_decoded_unchanged(message: messages.FromCoordinator) -> None:
    """``test_channel`` has the messages of members."""
    assert received(FROM_COORDINATOR, framed(message)) == [message]


def test_deeply_nested_message_is_refused() -> None:
    """It must not exhaust the decoder's stack."""
    body = b"\x82\xa4type\xa5Hello\xa1x" + b"\x91" * 60_000

    with pytest.raises(BadFrame):
        received(FROM_MEMBERS, as_frame(body))


def test_coordinator_message_of_a_member_is_refused() -> None:
    with pytest.raises(BadFrame):
        received(FROM_MEMBERS, framed(messages.Stop(0, "because")))


CLEAR_SCREEN = "\x1b[2J"
FAILURE = messages.FirstFailure(0, KILLED, 0.0)


def of_member(
    message: messages.FromMember, **wrong: object
) -> tuple[messages.FromMember, dict[str, object]]:
    """Return a message and what is put into its fields, or into those of the result in it."""
    return message, wrong


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        of_member(hello(1), rank=-1),
        of_member(hello(1), workers=-1),
        of_member(hello(1), host="h" * 256),
        of_member(hello(1), host=f"{CLEAR_SCREEN}n1"),
        of_member(hello(1), host="n1\nclusterrun: error: no"),
        of_member(hello(1), host="n1\u202e"),
        of_member(hello(1), pid="12"),
        of_member(hello(1), kept_attempts=messages.MAX_KEPT_ATTEMPTS + 1),
        of_member(hello(1), at=-1.0),
        of_member(hello(1), must={"nnodes": 2}),
        of_member(hello(1), must={"nnodes": "2\x9b2J"}),
        of_member(hello(1), run_id="../../etc"),
        of_member(hello(1), run_id=".."),
        of_member(FAILURE, rank=-1),
        of_member(FAILURE, exit_status={"type": "Exited", "code": 256}),
        of_member(FAILURE, exit_status={"type": "Exited", "code": -1}),
        of_member(FAILURE, exit_status={"type": "Killed", "number": 256}),
        of_member(FAILURE, exit_status={"type": "Killed", "number": 0}),
        of_member(FAILURE, clock=1e30),
        of_member(FAILURE, clock=float("nan")),
        of_member(FAILURE, ran_for=-1.0),
        of_member(FAILURE, log=f"/logs/{CLEAR_SCREEN}"),
        of_member(FAILURE, tail=f"Error: {CLEAR_SCREEN}"),
        of_member(FAILURE, at=float("inf")),
        of_member(
            messages.EndedExternally(0, outcome.Interrupted(2)),
            external_cause={"type": "Interrupted", "number": 200},
        ),
        of_member(messages.Idle(0, 60.0), seconds=float("nan")),
        of_member(messages.Idle(0, 60.0), attempt=1 << 40),
        of_member(messages.Heartbeat(1.0), at=float("nan")),
    ],
)
def test_impossible_message_of_a_member_is_refused(
    message: messages.FromMember, wrong: dict[str, object]
) -> None:
    """A rank below 0, a time out of range, a name with control characters."""
    fields = msgspec.to_builtins(message)
    inner = fields.get("result", {})
    fields |= {name: value for name, value in wrong.items() if name not in inner}
    inner |= {name: value for name, value in wrong.items() if name in inner}

    with pytest.raises(BadFrame):
        received(FROM_MEMBERS, as_frame(encode(fields)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"run_id": ""},
        {"run_id": "."},
        {"run_id": "/tmp/elsewhere"},
        {"run_id": CLEAR_SCREEN},
        {"master_addr": "n0\0"},
        {"master_port": 0},
        {"first_rank": -1},
        {"size": 0},
    ],
)
def test_impossible_world_is_refused(wrong: dict[str, object]) -> None:
    """The run id is the name of a folder of logs, and an address becomes a variable of the workers."""
    fields = msgspec.to_builtins(messages.WorldFormed(world(2), "n0"))
    fields["world"] |= wrong

    with pytest.raises(BadFrame):
        received(FROM_COORDINATOR, as_frame(encode(fields)))


@pytest.mark.parametrize(
    "message",
    [
        messages.Refused(messages.Refusal.GIVE_UP, CLEAR_SCREEN, ""),
        messages.Refused(messages.Refusal.GIVE_UP, "a\nb", ""),
        messages.Refused(messages.Refusal.GIVE_UP, "", CLEAR_SCREEN),
        messages.Notice(CLEAR_SCREEN),
        messages.Stop(0, CLEAR_SCREEN),
        messages.Verdict(outcome.NodeLost(1, CLEAR_SCREEN), ""),
        # No attempt follows such an end.
        messages.NextAttempt(world(2, attempt=1), outcome.Succeeded()),  # type: ignore[arg-type]
        messages.NextAttempt(world(2, attempt=1), outcome.Interrupted(15)),  # type: ignore[arg-type]
        messages.NextAttempt(world(2, attempt=1), outcome.OutputGone()),  # type: ignore[arg-type]
        queries.Answer(0, 0, CLEAR_SCREEN),
        queries.EndOfAnswers(0, (queries.MissingNode(0, CLEAR_SCREEN, ""),)),
    ],
)
def test_impossible_message_of_the_coordinator_is_refused(
    message: messages.FromCoordinator,
) -> None:
    """A text with control characters, which is printed as it comes."""
    with pytest.raises(BadFrame):
        received(FROM_COORDINATOR, framed(message))


def loose_fields(message: type) -> Iterator[str]:
    """Yield each field of a message, and of what is in it, that would take any value."""
    left, known = [inspect.type_info(message)], set()
    while left:
        kind = left.pop()
        if isinstance(kind, inspect.StructType) and kind.cls not in known:
            known.add(kind.cls)
            for field in kind.fields:
                parts = [*parts_of(field.type)]
                left += parts
                if any(is_loose(part) for part in parts):
                    yield f"{kind.cls.__name__}.{field.name}"


def parts_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types of what a field may hold."""
    match kind:
        case inspect.UnionType(types):
            yield from (part for each in types for part in parts_of(each))
        case inspect.VarTupleType(item_type):
            yield from parts_of(item_type)
        case inspect.DictType(key_type, value_type):
            yield from (*parts_of(key_type), *parts_of(value_type))
        case _:
            yield kind


def is_loose(kind: inspect.Type) -> bool:
    """Return whether a type takes any text or number, or is unknown to this test."""
    match kind:
        case inspect.StrType(_, longest, pattern):
            return longest is None or pattern is None
        case inspect.IntType() | inspect.FloatType():
            return kind.ge is None or (kind.lt is None and kind.le is None)
        case inspect.BytesType():
            return kind.max_length is None
        case inspect.BoolType() | inspect.NoneType() | inspect.EnumType() | inspect.StructType():
            return False
        case _:
            return True


@pytest.mark.parametrize(
    "message",
    [
        *get_args(messages.FromMember),
        *get_args(messages.FromCoordinator),
        *answers.BodyT.__constraints__,
    ],
)
def test_every_field_has_bounds(message: type) -> None:
    """This includes fields that are added later."""
    assert list(loose_fields(message)) == []


anything = st.text(st.characters(exclude_categories=()), max_size=60)


@given(anything, anything, st.floats(allow_nan=False))
def test_any_own_value_is_made_to_fit(text: str, other: str, number: float) -> None:
    ended = result(
        0, exit_status=outcome.NotStarted(text, other), host=other, tail=text, log=other, error=text
    )
    ended = msgspec.structs.replace(ended, out_of_memory=text, clock=number, ran_for=number)
    sent: list[messages.FromMember] = [
        hello(1, host=as_name(text), should={"script": bounded_value(other)}),
        bounded(messages.FirstFailure(0, ended, number)),
        bounded(messages.Done(0, (messages.DatedResult(ended, number),), None)),
    ]

    assert received(FROM_MEMBERS, b"".join(framed(each) for each in sent)) == sent
