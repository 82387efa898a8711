"""Messages with descriptors between two of our processes."""

import marshal
import os
import select
import socket
from collections.abc import Iterator

import pytest

from tests.workers.door import MARSHAL_VERSION, MAXIMUM_FRAME, ChannelError, HelperChannel, Message

Pair = tuple[HelperChannel, HelperChannel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = (HelperChannel(sock) for sock in socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_messages_arrive_in_order_with_any_text(pair: Pair) -> None:
    """Two messages sent at once arrive as two, undecodable file names included."""
    left, right = pair
    messages: list[Message] = [
        {"kind": "open", "path": "\udcff/ü\n"},
        {"kind": "say", "list": [1, None]},
    ]

    for message in messages:
        left.send(message)

    assert right.receive() == [(message, ()) for message in messages]
    assert not right.closed


def test_each_message_gets_its_own_descriptors(pair: Pair) -> None:
    """Descriptors of frames that are read in one go are not mixed up."""
    left, right = pair
    pipes = [os.pipe() for _ in range(3)]

    left.send({"n": 0}, [pipes[0][1]])
    left.send({"n": 1})
    left.send({"n": 2}, [pipes[1][1], pipes[2][1]])
    received = right.receive()

    assert [(message, len(fds)) for message, fds in received] == [
        ({"n": 0}, 1),
        ({"n": 1}, 0),
        ({"n": 2}, 2),
    ]
    for number, writer in enumerate(fd for _, fds in received for fd in fds):
        os.write(writer, b"x")
        assert os.read(pipes[number][0], 2) == b"x"
        assert not os.get_inheritable(writer)
        os.close(writer)
    for fd in sum(pipes, ()):
        os.close(fd)


def test_what_does_not_fit_waits_with_its_descriptors(pair: Pair) -> None:
    """A full socket does not block; everything arrives once the peer reads, even if descriptors were closed."""
    left, right = pair
    reader, writer = os.pipe()
    received: list[tuple[Message, tuple[int, ...]]] = []

    left.send({"text": "x" * 3_000_000})
    left.send({"last": True}, [writer])
    os.close(writer)
    assert left.wants_write
    while left.wants_write:
        assert select.select([right], [], [], 5)[0]
        received += right.receive()
        left.flush()
    received += right.receive()

    assert [len(str(message)) for message, _ in received] == [3_000_012, 14]
    os.write(received[1][1][0], b"still open")
    assert os.read(reader, 100) == b"still open"
    os.close(received[1][1][0])
    assert os.read(reader, 1) == b"", "a copy of the descriptor stayed behind"
    os.close(reader)


def test_frames_cut_anywhere_are_put_together() -> None:
    """A frame that arrives byte by byte is one message."""
    raw, sock = socket.socketpair()
    channel = HelperChannel(sock)
    body = marshal.dumps({"a": 1}, MARSHAL_VERSION)
    frame = len(body).to_bytes(4, "big") + body
    received = []

    for number in range(len(frame)):
        raw.send(frame[number : number + 1])
        received.append(channel.receive())

    assert received == [[]] * (len(frame) - 1) + [[({"a": 1}, ())]]
    raw.close()
    channel.close()


def test_what_the_dead_peer_had_sent_is_still_read(pair: Pair) -> None:
    """A peer that dies before it has read our messages is an end of file, after what it sent."""
    left, right = pair
    right.send({"unread": 1})
    left.send({"last": "words"})

    left.close()

    assert right.receive() == [({"last": "words"}, ())]
    assert right.closed
    right.send({"dropped": 1})
    assert not right.wants_write


def test_sending_to_a_dead_peer_is_no_error(pair: Pair) -> None:
    """Only ``receive`` reports that the peer has died."""
    left, right = pair
    right.close()

    left.send({"to": "nobody"})

    assert not left.wants_write
    assert left.receive() == []
    assert left.closed


def test_too_large_a_frame_is_a_bug() -> None:
    """It is neither sent nor read: a length out of bounds means that something is broken."""
    raw, sock = socket.socketpair()
    channel = HelperChannel(sock)
    raw.send((MAXIMUM_FRAME + 1).to_bytes(4, "big"))

    with pytest.raises(ChannelError, match="16777217 bytes"):
        channel.receive()
    with pytest.raises(ChannelError, match="16777232 bytes"):
        channel.send({"text": "x" * MAXIMUM_FRAME})
    raw.close()
    channel.close()


def test_descriptors_nobody_took_are_closed() -> None:
    """Closing the channel closes what arrived with a frame that never became whole."""
    raw, sock = socket.socketpair()
    channel = HelperChannel(sock)
    reader, writer = os.pipe()

    socket.send_fds(raw, [b"\x00\x00"], [writer])
    os.close(writer)
    channel.receive()
    channel.close()

    assert os.read(reader, 1) == b""
    os.close(reader)
    raw.close()
