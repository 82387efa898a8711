"""The coordinator's connections by number: each is watched for what it wants."""

import select
import socket
from collections.abc import Iterator

import pytest

from tests.network.frames import as_frame, framed
from tests.rendezvous.door import (
    FROM_MEMBERS,
    Channel,
    Connections,
)
from tests.rendezvous.nodes import hello

BODY = bytes(1 << 20)


@pytest.fixture
def connections() -> Iterator[tuple[Connections, dict[int, socket.socket]]]:
    """Return connections 1 and 2, and their other ends."""
    made, others = Connections(), {}
    for number in (1, 2):
        ours, others[number] = socket.socketpair()
        made.add(number, Channel(FROM_MEMBERS, ours), f"10.0.0.{number}")
    yield made, others
    for number in (1, 2):
        made.drop(number)
        others[number].close()
    made.epoll.close()


def test_who_speaks_is_ready(connections: tuple[Connections, dict[int, socket.socket]]) -> None:
    """And no other connection."""
    made, others = connections
    before = made.ready()
    others[2].sendall(framed(hello(2)))

    assert (before, made.ready()) == ([], [2])
    connection = made.get(2)
    assert connection is not None
    assert connection.receive() == [hello(2)]
    assert made.ready() == []


def test_what_does_not_fit_is_sent_when_it_does(
    connections: tuple[Connections, dict[int, socket.socket]],
) -> None:
    """The slow one is ready once it has read something, the quick one is not held up."""
    made, others = connections
    made.send((1, 7), BODY)
    waits = (made.all_sent, made.ready())
    read = 0
    while read < 4 + len(BODY):
        assert select.select([others[1]], [], [], 5)[0]
        read += len(others[1].recv(1 << 20))
        for number in made.ready():
            connection = made.get(number)
            assert connection is not None
            connection.flush()
            connection.watch(made.epoll)

    assert waits == (False, [])
    assert (made.all_sent, made.ready()) == (True, [])


def test_what_is_dropped_is_gone(
    connections: tuple[Connections, dict[int, socket.socket]],
) -> None:
    """Its other end sees the end, and what is sent to it goes nowhere."""
    made, others = connections
    dropped = (made.drop(1), made.drop(1))
    made.send((1, 2), b"all")

    assert dropped == (True, False)
    assert (made.get(1), len(made), made.numbers, made.peer(2)) == (None, 1, (2,), "10.0.0.2")
    assert (others[1].recv(10), others[2].recv(10)) == (b"", as_frame(b"all"))
