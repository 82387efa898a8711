"""Channels: messages arrive, everything else is refused, and each kind of end is reported."""

import select
import socket
import struct
from collections.abc import Callable, Iterator

import pytest
from clusterrun.network.addresses import numeric_address
from clusterrun.network.channel import (
    FROM_COORDINATOR,
    FROM_MEMBERS,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    MAX_UNSENT_BYTES,
    Channel,
    ChannelEnd,
    OutgoingChannel,
)
from clusterrun.network.handshake import (
    MAGIC,
    NO_ADDRESS,
    VERSION,
    BadFrame,
    Fault,
    HandshakeFailed,
    coordinator_handshake,
    member_handshake,
)
from clusterrun.policy import messages
from free_ports import free_port
from hypothesis import given
from hypothesis import strategies as st

from tests.network.frames import OF_MEMBERS, as_frame, framed, received
from tests.network.nodes import done, hello, result

Pair = tuple[socket.socket, socket.socket]
STOP = messages.Stop(0, "because")


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), timeout=5)
        theirs, _ = server.accept()
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


def of_members(sock: socket.socket, token: bytes | None = None) -> Channel[messages.FromMember]:
    return Channel(FROM_MEMBERS, sock, None if token is None else coordinator_handshake(token))


def of_coordinator(
    sock: socket.socket, token: bytes | None = None
) -> Channel[messages.FromCoordinator]:
    return Channel(FROM_COORDINATOR, sock, None if token is None else member_handshake(token))


def receive(
    channel: Channel[messages.FromMember] | Channel[messages.FromCoordinator],
) -> list[object]:
    """Wait until there is something to read, and read it."""
    assert select.select([channel], [], [], 5)[0]
    return list(channel.receive())


def reset(sock: socket.socket) -> None:
    """Close a connection as the kernel does that has forgotten it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("token", [b"", b"secret"])
def test_messages_are_received_after_the_handshake(pair: Pair, token: bytes) -> None:
    """Messages sent during the handshake are queued."""
    member, node_zero = of_coordinator(pair[0], token), of_members(pair[1], token)
    member.send(hello(1))
    node_zero.send(STOP)
    found: tuple[list[object], list[object]] = ([], [])
    while not all(found):
        found[0].extend(node_zero.receive())
        found[1].extend(member.receive())

    assert found == ([hello(1)], [STOP])
    assert member.is_ready
    assert node_zero.is_ready
    assert member.local_address == "127.0.0.1"


@given(st.lists(st.integers(1, 60), max_size=30))
def test_frames_in_pieces_are_received(sizes: list[int]) -> None:
    """TCP keeps the order of bytes but not their grouping."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel, found = of_members(ours), []
        stream = b"".join(framed(message) for message in OF_MEMBERS)
        for size in [*sizes, len(stream)]:
            theirs.sendall(stream[:size])
            stream = stream[size:]
            found += channel.receive()

    assert found == OF_MEMBERS


def test_amount_read_per_turn_is_limited(pair: Pair) -> None:
    """The rest is read in later turns, so other connections are served in between."""
    ours, theirs = pair
    reader = of_members(ours)
    beat = framed(messages.Heartbeat(1.0))
    theirs.setblocking(False)
    sent = theirs.send(beat * 20_000)
    counts = list[int]()
    while sum(counts) < sent // len(beat):
        assert select.select([ours], [], [], 5)[0]
        counts.append(len(reader.receive()))

    assert sent > 1 << 17
    assert max(counts) <= (1 << 16) // len(beat) + 1


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 0x7FFFFFFF, 0xFFFFFFFF])
def test_too_long_frame_is_refused_before_it_arrives(length: int) -> None:
    """No length makes an agent reserve a gigabyte."""
    with pytest.raises(BadFrame, match=f"sent a message of {length} bytes"):
        received(FROM_MEMBERS, length.to_bytes(4, "big"))


def test_limit_of_first_message_can_be_lowered() -> None:
    frame = (MAX_HELLO_BYTES + 1).to_bytes(4, "big")

    assert received(FROM_MEMBERS, frame) == []
    with pytest.raises(BadFrame):
        received(FROM_MEMBERS, frame, MAX_HELLO_BYTES)


def test_message_of_maximum_length_is_received() -> None:
    one = result(1, 1, tail="x" * 8000)
    count = MAX_FRAME_BYTES // len(framed(done(0, [one])))
    message = done(0, [one] * count)
    assert received(FROM_MEMBERS, framed(message)) == [message]


def test_input_beyond_the_limit_is_not_read(pair: Pair) -> None:
    """A sender that is too fast fills its own buffers."""
    channel = of_members(pair[0])
    channel.max_body_bytes = 1000
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    pair[1].settimeout(0)
    sent = pair[1].send(framed(hello(1)) * 5000)
    found = receive(channel)

    assert 0 < len(found) * len(framed(hello(1))) < sent


@given(st.binary(max_size=200))
def test_garbage_is_a_bad_frame(garbage: bytes) -> None:
    """There is no other exception, and the channel has ended."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = of_members(ours)
        theirs.sendall(as_frame(garbage) + framed(hello(1)))

        with pytest.raises(BadFrame, match="not a message of clusterrun's"):
            channel.receive()

        assert (channel.end, channel.receive(), channel.wants_write) == (ChannelEnd.BAD, [], False)


Tamper = Callable[[list[bytes]], list[bytes]]


TAMPERED: dict[str, Tamper] = {
    "changed": lambda frames: [frames[0].replace(b"n1", b"n2"), *frames[1:]],
    "another MAC": lambda frames: [frames[0][:-1] + bytes([frames[0][-1] ^ 1]), *frames[1:]],
    "repeated": lambda frames: [frames[0], *frames],
    "dropped": lambda frames: frames[1:],
    "swapped": lambda frames: [frames[1], frames[0], frames[2]],
    "cut": lambda frames: [frames[0][:-3], *frames[1:]],
    "without MACs": lambda frames: [each[:-16] for each in frames],
    "inserted": lambda frames: [framed(hello(7)) + bytes(16), *frames],
}


def ready_pair(
    ours: socket.socket, theirs: socket.socket
) -> tuple[Channel[messages.FromCoordinator], Channel[messages.FromMember]]:
    """Return a member's and a coordinator's channel after a handshake with a token."""
    member, node_zero = of_coordinator(ours, b"secret"), of_members(theirs, b"secret")
    while not (member.is_ready and node_zero.is_ready):
        node_zero.receive()
        member.receive()
    return member, node_zero


def frames_in(data: bytes) -> list[bytes]:
    """Return the frames, with their MACs."""
    frames = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big") + 16
        frames.append(data[:end])
        data = data[end:]
    return frames


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_tampered_frame_is_refused(tamper: Tamper) -> None:
    """If the job has a token, a program between both sides can't change frames."""
    (ours, relay_of_ours), (theirs, relay_of_theirs) = socket.socketpair(), socket.socketpair()
    with ours, theirs, relay_of_ours, relay_of_theirs:
        member, node_zero = of_coordinator(ours, b"secret"), of_members(theirs, b"secret")
        while not (member.is_ready and node_zero.is_ready):
            for one, other in ((relay_of_ours, relay_of_theirs), (relay_of_theirs, relay_of_ours)):
                if select.select([one], [], [], 0)[0]:
                    other.sendall(one.recv(1 << 16))
            node_zero.receive()
            member.receive()
        for _ in range(3):
            member.send(hello(1))
        frames = frames_in(relay_of_ours.recv(1 << 16))
        relay_of_theirs.sendall(b"".join(tamper(frames)))

        with pytest.raises(BadFrame):
            node_zero.receive()

        assert len(frames) == 3
        assert node_zero.end is ChannelEnd.BAD


def test_frame_sent_back_is_refused() -> None:
    """Each direction has its own key."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        member, _ = ready_pair(ours, theirs)
        member.send(messages.Paused(paused=True))
        theirs.sendall(theirs.recv(1 << 16))

        with pytest.raises(BadFrame, match="corrupted in transit"):
            member.receive()


@pytest.mark.parametrize("shuts_down", [False, True])
def test_only_shut_down_closes_a_shared_connection(pair: Pair, *, shuts_down: bool) -> None:
    """The fork server also has the connection open, and closes it when no worker is left."""
    channel, other = of_members(pair[0]), of_coordinator(pair[1])
    with pair[0].dup():
        if shuts_down:
            channel.shut_down()
        else:
            channel.close()
        ends = bool(select.select([other], [], [], 0.1)[0])
    found = receive(other)

    assert ends is shuts_down
    assert (channel.end, other.end, found) == (ChannelEnd.OURS, ChannelEnd.CLOSED, [])


def test_shutting_down_twice_is_harmless(pair: Pair) -> None:
    channel = of_members(pair[0])
    channel.shut_down()
    channel.shut_down()

    assert channel.end is ChannelEnd.OURS


@pytest.mark.parametrize(("seconds", "between"), [(15.0, 5), (0.5, 1), (604_800.0, 32_767)])
def test_kernel_probes_idle_connection(pair: Pair, seconds: float, between: int) -> None:
    """A host that has failed is detected even if no agent has anything to send."""
    channel = of_members(pair[0])

    channel.limit_silence(seconds)

    assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
    found = [pair[0].getsockopt(socket.IPPROTO_TCP, option) for option in tcp]
    assert found == [between, between, seconds * 1000]


@pytest.mark.parametrize(
    "first_words",
    [
        b"GET / HTTP/1.1\r\nHost: n0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\0" * 200,
        MAGIC[:5] + b"x",
    ],
)
def test_wrong_first_byte_fails_the_handshake(pair: Pair, first_words: bytes) -> None:
    """An HTTP client sends no more before it gets an answer."""
    channel = of_members(pair[0], b"")
    pair[1].sendall(first_words)

    with pytest.raises(HandshakeFailed) as caught:
        receive(channel)

    assert (caught.value.fault, channel.end) == (Fault.NOT_CLUSTERRUN, ChannelEnd.BAD)
    channel.close()
    assert pair[1].recv(100) == b""


def test_handshake_in_single_bytes_succeeds(pair: Pair) -> None:
    channel = of_members(pair[0], b"")
    for byte in struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 0, b"m" * 32) + NO_ADDRESS:
        assert not channel.is_ready
        pair[1].sendall(bytes([byte]))
        receive(channel)

    assert channel.is_ready


def test_incomplete_last_message_is_reported(pair: Pair) -> None:
    """Messages before it are received."""
    channel = of_members(pair[0])
    frame = framed(hello(1))
    pair[1].sendall(frame + frame[:10])
    pair[1].shutdown(socket.SHUT_WR)

    assert receive(channel) + channel.receive() == [hello(1)]
    assert (channel.end, channel.has_unfinished_input) == (ChannelEnd.CLOSED, True)


def test_end_of_file_is_closed(pair: Pair) -> None:
    """Closing this end later does not change the reason."""
    channel = of_members(pair[0])
    assert not channel.is_closed_by_peer()
    pair[1].close()

    assert receive(channel) == []
    assert channel.is_closed_by_peer()
    channel.close()
    assert (channel.end, channel.error_text) == (ChannelEnd.CLOSED, None)


def test_own_close_is_ours(pair: Pair) -> None:
    ours, named = of_members(pair[0]), of_members(pair[1])
    ours.close()
    named.close(ChannelEnd.SLOW)

    assert (ours.end, named.end) == (ChannelEnd.OURS, ChannelEnd.SLOW)


def test_reset_is_not_closed(pair: Pair) -> None:
    """The process may be alive but unreachable."""
    channel = of_members(pair[0])
    reset(pair[1])

    assert receive(channel) == []
    assert (channel.end, channel.error_text) == (ChannelEnd.RESET, "connection reset by peer")


def test_reset_during_send_is_a_reset(pair: Pair) -> None:
    """The next read finds the end of file."""
    channel = of_members(pair[0])
    reset(pair[1])
    assert select.select([channel], [], [], 5)[0]
    channel.send(STOP)
    open_still = channel.end is None

    assert channel.receive() == []
    assert (open_still, channel.end) == (True, ChannelEnd.RESET)


def test_messages_before_the_end_are_received_despite_failed_send(pair: Pair) -> None:
    """A refusal arrives although messages that are sent meanwhile find the connection closed."""
    channel = of_coordinator(pair[0])
    pair[1].sendall(framed(STOP))
    pair[1].close()
    assert select.select([channel], [], [], 5)[0]
    for _ in range(3):
        channel.send(hello(1))

    assert channel.receive() == [STOP]


def test_send_to_full_socket_is_queued(pair: Pair) -> None:
    """Nothing blocks, and nothing is lost."""
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    channel = of_coordinator(pair[0])
    body = b"x" * 4000
    for _ in range(500):
        channel.send_body(body)
    waited = channel.wants_write
    expected, count = 500 * len(as_frame(body)), 0
    while count < expected:
        writable = [channel] if channel.wants_write else []
        readable, writable, _ = select.select([pair[1]], writable, [], 5)
        assert readable or writable
        if writable:
            channel.flush()
        count += len(pair[1].recv(1 << 20)) if readable else 0

    assert waited
    assert (count, channel.wants_write) == (expected, False)


def test_peer_that_does_not_read_ends_the_channel(pair: Pair) -> None:
    """A frozen member must not make node 0 queue data without limit."""
    channel = of_coordinator(pair[0])
    sent = 0
    while channel.end is None:
        channel.send_body(bytes(1 << 20))
        sent += 1 << 20

    assert sent > MAX_UNSENT_BYTES
    assert (channel.end, channel.error_text) == (ChannelEnd.SLOW, "does not read what it is sent")


def test_port_without_listener_is_refused() -> None:
    [address] = numeric_address("127.0.0.1")
    port = free_port()
    outgoing = OutgoingChannel(address, port, b"")
    receive(outgoing)
    outgoing.close()

    assert (outgoing.address, outgoing.port, outgoing.connected) == (address, port, False)
    assert (outgoing.end, outgoing.error_text) == (ChannelEnd.REFUSED, "connection refused")
