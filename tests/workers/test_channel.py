"""Messages with descriptors between two of the launcher's processes."""

import marshal
import os
import select
import socket
from collections.abc import Callable, Iterator

import pytest
from clusterrun.workers.fork_server import messages
from clusterrun.workers.fork_server.channel import (
    MARSHAL_VERSION,
    MAXIMUM_FRAME,
    ChannelError,
    HelperChannel,
)

Channel = HelperChannel["messages.FromRelay | messages.ToRelay", "messages.ToRelay"]
Pair = tuple[Channel, Channel]


def channel_on(sock: socket.socket) -> Channel:
    """Return a channel that sends and takes the messages to a relay."""
    return HelperChannel(sock, messages.TO_RELAY, messages.TO_RELAY)


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = map(channel_on, socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_in_order_with_any_text(pair: Pair) -> None:
    """Two messages sent at once arrive as two, undecodable file names included."""
    left, right = pair
    sent: list[messages.ToRelay] = [
        messages.Append("\udcff/ü\n", ""),
        messages.WatchOutput(None),
        messages.SkipStacks([1]),
    ]

    for message in sent:
        left.send(message)
    received = right.receive()

    assert received == [(message, ()) for message in sent]
    assert [type(message) for message, _ in received] == [type(message) for message in sent]
    assert not right.closed


def test_each_message_gets_its_own_descriptors(pair: Pair) -> None:
    """Descriptors of frames that are read in one go are not mixed up."""
    left, right = pair
    pipes = [os.pipe() for _ in range(3)]

    left.send(messages.QueryLastLines(0), [pipes[0][1]])
    left.send(messages.QueryLastLines(1))
    left.send(messages.QueryLastLines(2), [pipes[1][1], pipes[2][1]])
    received = right.receive()

    assert [(message, len(descriptors)) for message, descriptors in received] == [
        (messages.QueryLastLines(0), 1),
        (messages.QueryLastLines(1), 0),
        (messages.QueryLastLines(2), 2),
    ]
    for number, writer in enumerate(each for _, descriptors in received for each in descriptors):
        os.write(writer, b"x")
        assert os.read(pipes[number][0], 2) == b"x"
        assert not os.get_inheritable(writer)
        os.close(writer)
    for descriptor in sum(pipes, ()):
        os.close(descriptor)


def test_full_socket_queues_message_with_descriptors(pair: Pair) -> None:
    """The sender does not block, and may close its descriptors."""
    left, right = pair
    reader, writer = os.pipe()
    received: list[tuple[messages.ToRelay, tuple[int, ...]]] = []

    left.send(messages.PrintText("x" * 3_000_000))
    left.send(messages.PrintText("last"), [writer])
    os.close(writer)
    assert left.wants_write
    while left.wants_write:
        assert select.select([right], [], [], 5)[0]
        received += right.receive()
        left.flush()
    received += right.receive()

    assert [len(str(message)) for message, _ in received] == [3_000_005, 9]
    os.write(received[1][1][0], b"still open")
    assert os.read(reader, 100) == b"still open"
    os.close(received[1][1][0])
    assert os.read(reader, 1) == b"", "a copy of the descriptor stayed behind"
    os.close(reader)


def test_frame_received_byte_by_byte() -> None:
    raw, sock = socket.socketpair()
    channel = channel_on(sock)
    number = messages.TO_RELAY.index(messages.PrintText)
    body = marshal.dumps((0, number, "a"), MARSHAL_VERSION)
    frame = len(body).to_bytes(4, "big") + body
    received = []

    for place in range(len(frame)):
        raw.send(frame[place : place + 1])
        received.append(channel.receive())

    assert received == [[]] * (len(frame) - 1) + [[(messages.PrintText("a"), ())]]
    raw.close()
    channel.close()


def test_messages_of_a_dead_peer_are_received(pair: Pair) -> None:
    """Then ``closed`` is set, even if the peer has not read all messages."""
    left, right = pair
    right.send(messages.PrintText("unread"))
    left.send(messages.PrintText("last words"))

    left.close()

    assert right.receive() == [(messages.PrintText("last words"), ())]
    assert right.closed
    right.send(messages.PrintText("dropped"))
    assert not right.wants_write


def test_send_to_dead_peer_raises_nothing(pair: Pair) -> None:
    """Only ``receive`` reports that the peer has died."""
    left, right = pair
    right.close()

    left.send(messages.PrintText("to nobody"))

    assert not left.wants_write
    assert left.receive() == []
    assert left.closed


@pytest.mark.parametrize(
    "make",
    [
        lambda: messages.Link("path"),  # type: ignore[call-arg]
        lambda: messages.Link("path", "target", "more"),  # type: ignore[call-arg]
        lambda: messages.Link(path="path", targets="misspelled"),  # type: ignore[call-arg]
        lambda: messages.Link("path", "target", line="of another type"),  # type: ignore[call-arg]
    ],
)
def test_wrong_fields_raise(make: Callable[[], messages.Link]) -> None:
    """At the sender, not at the receiver."""
    with pytest.raises((TypeError, AttributeError), match="Link"):
        make()


def test_unknown_message_type_raises(pair: Pair) -> None:
    """At the sender."""
    with pytest.raises(ValueError, match="not in tuple"):
        pair[0].send(messages.StdoutClosed())


def test_too_large_frame_raises() -> None:
    """At the sender and at the receiver."""
    raw, sock = socket.socketpair()
    channel = channel_on(sock)
    raw.send((MAXIMUM_FRAME + 1).to_bytes(4, "big"))

    with pytest.raises(ChannelError, match="16777217 bytes"):
        channel.receive()
    with pytest.raises(ChannelError, match=r"167772\d\d bytes"):
        channel.send(messages.PrintText("x" * MAXIMUM_FRAME))
    raw.close()
    channel.close()


def test_close_closes_received_descriptors() -> None:
    """Those of an incomplete frame."""
    raw, sock = socket.socketpair()
    channel = channel_on(sock)
    reader, writer = os.pipe()

    socket.send_fds(raw, [b"\x00\x00"], [writer])
    os.close(writer)
    channel.receive()
    channel.close()

    assert os.read(reader, 1) == b""
    os.close(reader)
    raw.close()
