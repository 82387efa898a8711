"""A connection: what is sent arrives, and a stranger is detected at once."""

import select
import socket
import struct
from collections.abc import Iterator

import pytest

from tests.rendezvous.door import (
    FROM_COORDINATOR,
    FROM_MEMBERS,
    MAGIC,
    VERSION,
    BadFrame,
    Connection,
    Fault,
    FromCoordinator,
    FromMember,
    HandshakeFailed,
    Stop,
    coordinator_handshake,
    framed,
    member_handshake,
)
from tests.rendezvous.nodes import hello

Members = Connection[FromMember]
Coordinators = Connection[FromCoordinator]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), timeout=5)
        theirs, _ = server.accept()
    theirs.settimeout(5)
    with ours, theirs:
        yield ours, theirs


def wait_for(connection: Members | Coordinators) -> None:
    """Wait until there is something to read."""
    assert select.select([connection], [], [], 5)[0]


def test_handshake_then_messages(pair: tuple[socket.socket, socket.socket]) -> None:
    """Both sides, with a token, over a real connection."""
    member: Coordinators = Connection(pair[0], FROM_COORDINATOR, member_handshake(b"t", b"m" * 32))
    node_zero: Members = Connection(pair[1], FROM_MEMBERS, coordinator_handshake(b"t", b"c" * 32))
    while not (member.is_ready and node_zero.is_ready):
        for connection in (node_zero, member):
            if select.select([connection], [], [], 0.01)[0]:
                connection.receive()
    member.send(hello(1))
    node_zero.send(Stop(0, "because"))
    wait_for(member)
    wait_for(node_zero)

    assert (node_zero.receive(), member.receive()) == ([hello(1)], [Stop(0, "because")])


@pytest.mark.parametrize(("seconds", "between"), [(15.0, 5), (0.5, 1), (604_800.0, 32_767)])
def test_a_host_that_answers_nothing_is_found_out(
    pair: tuple[socket.socket, socket.socket], seconds: float, between: int
) -> None:
    """By the kernel, which asks for an answer itself where no agent has anything to say."""
    connection: Members = Connection(pair[0], FROM_MEMBERS)

    connection.give_up_after(seconds)

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
def test_a_stranger_is_found_out_at_his_first_wrong_byte(
    pair: tuple[socket.socket, socket.socket], first_words: bytes
) -> None:
    """An HTTP client waits for an answer before it says any more."""
    connection: Members = Connection(pair[0], FROM_MEMBERS, coordinator_handshake(b"", b"c" * 32))
    pair[1].sendall(first_words)
    wait_for(connection)

    with pytest.raises(HandshakeFailed) as caught:
        connection.receive()

    assert caught.value.fault is Fault.NOT_CLUSTERRUN
    connection.close()
    assert pair[1].recv(100) == b""


def test_a_slow_handshake_is_waited_for(pair: tuple[socket.socket, socket.socket]) -> None:
    """Byte by byte."""
    connection: Members = Connection(pair[0], FROM_MEMBERS, coordinator_handshake(b"", b"c" * 32))
    handshake = struct.pack(">12sHcB32s", MAGIC, VERSION, b"M", 0, b"m" * 32)
    for byte in handshake:
        pair[1].sendall(bytes([byte]))
        wait_for(connection)
        connection.receive()

    assert connection.is_ready


def test_half_a_message_at_the_end_is_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    """Messages before it are received."""
    connection: Members = Connection(pair[0], FROM_MEMBERS)
    frame = framed(hello(1))
    pair[1].sendall(frame + frame[:10])
    pair[1].shutdown(socket.SHUT_WR)
    wait_for(connection)

    received = connection.receive() + connection.receive()

    assert received == [hello(1)]
    assert (connection.closed, connection.has_unfinished_input) == (True, True)


def test_a_reset_is_the_end_and_has_a_name(pair: tuple[socket.socket, socket.socket]) -> None:
    """An agent that was killed."""
    connection: Members = Connection(pair[0], FROM_MEMBERS)
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    pair[1].close()
    wait_for(connection)

    assert connection.receive() == []
    assert (connection.closed, connection.trouble) == (True, "connection reset by peer")


def test_what_was_said_before_the_end_is_heard_though_we_were_speaking(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A refusal arrives although messages sent meanwhile find the connection closed."""
    connection: Coordinators = Connection(pair[0], FROM_COORDINATOR)
    pair[1].sendall(framed(Stop(0, "because")))
    pair[1].close()
    wait_for(connection)
    for _ in range(3):
        connection.send(hello(1))

    assert connection.receive() == [Stop(0, "because")]


def test_what_does_not_fit_is_sent_later(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nothing blocks, and nothing is lost."""
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection: Coordinators = Connection(pair[0], FROM_COORDINATOR)
    frame = framed(Stop(0, "x" * 4000))
    for _ in range(500):
        connection.send_frame(frame)
    waited = connection.wants_write
    expected, count = 500 * len(frame), 0
    while count < expected:
        writable = [connection] if connection.wants_write else []
        readable, writable, _ = select.select([pair[1]], writable, [], 5)
        assert readable or writable
        if writable:
            connection.flush()
        count += len(pair[1].recv(1 << 20)) if readable else 0

    assert waited
    assert (count, connection.wants_write) == (expected, False)


def test_who_does_not_read_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    """A frozen member must not make node 0 keep everything for it."""
    connection: Coordinators = Connection(pair[0], FROM_COORDINATOR)
    frame = b"x" * (1 << 20)
    for _ in range(20):
        connection.send_frame(frame)

    assert connection.closed
    assert connection.trouble == "does not read what it is sent"


def test_a_huge_length_is_refused_before_its_message_has_come(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Four bytes suffice to know."""
    connection: Members = Connection(pair[0], FROM_MEMBERS)
    pair[1].sendall(b"\xff\xff\xff\xff")
    wait_for(connection)

    with pytest.raises(BadFrame):
        connection.receive()


def test_no_more_is_taken_in_than_a_message_may_have(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A sender that is too fast fills its own buffers, not ours."""
    connection: Members = Connection(pair[0], FROM_MEMBERS)
    connection.longest = 1000
    pair[1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    pair[1].settimeout(0)
    sent = pair[1].send(framed(hello(1)) * 5000)
    wait_for(connection)
    received = connection.receive()

    assert 0 < len(received) * len(framed(hello(1))) < sent
