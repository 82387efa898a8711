"""The channel between an agent and its caller: pipes or a socket pair, and messages that wait."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from tests.network.door import BadFrame, How, caller, outcome

Pair = tuple["caller.CallerChannel[caller.FromAgent]", "caller.CallerChannel[caller.FromCaller]"]

LONG = 1 << 20


def over_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    down, up = os.pipe(), os.pipe()
    return (up[0], down[1]), (down[0], up[1])


def over_a_socket_pair() -> tuple[tuple[int, int], tuple[int, int]]:
    ours, theirs = (each.detach() for each in socket.socketpair())
    return (ours, ours), (theirs, theirs)


@pytest.fixture(params=[over_pipes, over_a_socket_pair])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Return the caller's end and the agent's."""
    make: Callable[[], tuple[tuple[int, int], tuple[int, int]]] = request.param
    ends = make()
    ours = caller.CallerChannel(caller.FROM_AGENT, *ends[0])
    agent = caller.CallerChannel(caller.FROM_CALLER, *ends[1])
    yield ours, agent
    for end in (ours, agent):
        with suppress(OSError):
            end.close()


def test_every_message_arrives_as_it_was_sent(pair: Pair) -> None:
    ours, agent = pair
    call = caller.Call(
        (b"--nnodes", b"2", b"\xff.py"),
        folder=b"/tmp/\xff",
        variables={b"A": b"\xff"},
        version="1.2",
        silence=3.0,
    )
    report = outcome.Report(outcome.Outcome(outcome.Succeeded(), attempt=0, fates=(), survivors=()))
    down = [call, caller.Start(), caller.Signal(15), caller.Beat()]
    up = [
        caller.Ready(),
        caller.Output(2, b"a\xff\n"),
        caller.Notice("b"),
        caller.Beat(),
        caller.Ended(3, report, "c"),
    ]

    for message in down:
        ours.send(message)
    for answer in up:
        agent.send(answer)

    assert agent.receive() == down
    assert ours.receive() == up


def test_a_message_that_is_waited_for_overtakes_the_others(pair: Pair) -> None:
    """Those that came in the same read are not lost."""
    ours, agent = pair
    for message in (caller.Beat(), caller.Signal(2), caller.Start(), caller.Signal(15)):
        ours.send(message)

    assert agent.next(caller.Start, 1.0) == caller.Start()
    assert agent.receive() == [caller.Beat(), caller.Signal(2), caller.Signal(15)]
    assert agent.next(caller.Start, 0.0) is None


def test_the_wait_ends_with_the_other_side(pair: Pair) -> None:
    ours, agent = pair
    ours.send(caller.Signal(2))
    ours.close()

    began = time.monotonic()
    assert agent.next(caller.Start, 60.0) is None
    assert time.monotonic() - began < 30
    assert agent.receive() == [caller.Signal(2)]
    assert agent.end is How.CLOSED


def test_a_long_message_is_sent_while_it_is_read(pair: Pair) -> None:
    ours, agent = pair
    call = caller.Call((bytes(LONG),))
    ours.send(call)
    assert ours.wants_write
    sender = threading.Thread(target=ours.drain, args=(60.0,))
    sender.start()

    assert agent.next(caller.Call, 60.0) == call
    sender.join()
    assert not ours.wants_write


def test_a_reader_that_does_not_read_is_waited_for_so_long_only(pair: Pair) -> None:
    ours, _ = pair
    ours.send(caller.Call((bytes(LONG),)))

    ours.drain(0.01)

    assert ours.wants_write


def test_what_was_read_before_belongs_to_the_messages() -> None:
    """A greeting, which is no message, may come in one read with the first message."""
    reading, writing = os.pipe()
    begun = caller.frame(caller.Ready())
    with closing(caller.CallerChannel(caller.FROM_AGENT, reading, reading, begun[:3])) as ours:
        os.write(writing, begun[3:])
        os.close(writing)

        assert ours.receive() == [caller.Ready()]


def test_noise_is_no_message() -> None:
    reading, writing = os.pipe()
    with closing(caller.CallerChannel(caller.FROM_AGENT, reading, reading)) as ours:
        os.write(writing, b"bash: warning\n")
        os.close(writing)

        with pytest.raises(BadFrame):
            ours.receive()


def test_a_part_of_a_message_is_no_silence() -> None:
    """A long one on a slow link takes longer than a caller may be silent."""
    reading, writing = os.pipe()
    whole = caller.frame(caller.Output(1, b"a line\n"))
    with closing(caller.CallerChannel(caller.FROM_AGENT, reading, reading)) as ours:
        before = ours.heard_at
        time.sleep(0.01)
        os.write(writing, whole[:-1])

        assert ours.receive() == []
        assert ours.heard_at > before
        before = ours.heard_at
        time.sleep(0.01)
        os.write(writing, whole[-1:])
        os.close(writing)
        assert ours.receive() == [caller.Output(1, b"a line\n")]
        assert ours.heard_at > before


def test_the_time_of_the_last_message(pair: Pair) -> None:
    ours, agent = pair
    before = agent.heard_at
    time.sleep(0.01)

    assert agent.receive() == []
    assert agent.heard_at == before
    ours.send(caller.Beat())
    agent.receive()
    assert agent.heard_at > before
