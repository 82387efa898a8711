"""The connections of commands to an agent."""

import os
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.msgpack import Decoder

from tests.control.door import (
    MOST_CALLERS,
    MOST_OF_A_TURN,
    NEVER,
    SECONDS_TO_ASK,
    SECONDS_TO_READ,
    SECONDS_WITHOUT_DESCRIPTORS,
    Callers,
    Channel,
    Description,
    StopJob,
    member_handshake,
)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Let this process open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        made.listen()
        yield made


class Command:
    """A command that asks an agent in the same process."""

    def __init__(self, listener: socket.socket) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(listener.getsockname())
        self.channel = Channel(Decoder(Description), sock, member_handshake(b""))

    def asks(self, callers: Callers, now: float) -> bool:
        """Ask for the job's end; return whether the request arrives."""
        self.channel.send(StopJob(at_once=True))
        for _ in range(3):
            callers.accept(now)
            for caller, request in callers.requests(now):
                assert request == StopJob(at_once=True)
                self.caller = caller
                return True
            self.channel.receive()
        return False


@pytest.fixture
def callers(listener: socket.socket) -> Iterator[Callers]:
    made = Callers()
    made.listen(listener)
    yield made
    made.close()


def is_ready(callers: Callers) -> bool:
    ready = select.poll()
    ready.register(callers.fileno(), select.POLLIN)
    return bool(ready.poll(0))


def test_without_descriptors_it_waits(callers: Callers, listener: socket.socket) -> None:
    """The agent's loop must not turn for a command that can't be accepted; later it is."""
    command = Command(listener)
    with no_descriptors():
        callers.accept(10.0)

    assert not is_ready(callers)
    assert callers.due == 10.0 + SECONDS_WITHOUT_DESCRIPTORS
    assert command.asks(callers, callers.due)
    assert callers.due < NEVER
    command.channel.close()


def test_a_command_that_waits_for_its_answer_makes_no_work(
    callers: Callers, listener: socket.socket
) -> None:
    """The loop rests until there is an answer, or the command ends."""
    commands = [Command(listener), Command(listener)]
    assert all(command.asks(callers, 1.0) for command in commands)
    rests = not is_ready(callers)
    callers.answer(commands[0].caller, b"\x80", 2.0)
    commands[1].channel.close()
    wakes = is_ready(callers)
    assert list(callers.requests(2.0)) == []

    assert (rests, wakes, is_ready(callers), callers.due) == (True, True, False, NEVER)
    # Nothing is left of the first one either: its answer has been sent.
    assert commands[0].caller.fileno() == -1
    # The command may end before its answer.
    callers.answer(commands[1].caller, b"\x80", 3.0)
    commands[0].channel.close()


def test_a_long_answer_is_sent_as_it_is_read(callers: Callers, listener: socket.socket) -> None:
    """However long it is; a command that stops reading is dropped."""
    reader, idle = Command(listener), Command(listener)
    assert reader.asks(callers, 1.0)
    assert idle.asks(callers, 1.0)
    for command in (reader, idle):
        callers.answer(command.caller, bytes(20 << 20), 2.0)
    read = 0
    sock = socket.socket(fileno=os.dup(reader.channel.fileno()))
    sock.settimeout(5)
    while data := sock.recv(1 << 20):
        read += len(data)
        assert list(callers.requests(2.0)) == []

    assert read == 4 + (20 << 20)
    assert callers.due == 2.0 + SECONDS_TO_READ
    assert list(callers.requests(callers.due)) == []
    assert (idle.caller.fileno(), callers.due) == (-1, NEVER)
    for each in (reader.channel, idle.channel, sock):
        each.close()


def test_a_crowd_waits_in_the_queue(callers: Callers, listener: socket.socket) -> None:
    """A few are accepted in a turn, and a limited number at a time; time makes room."""
    listener.listen(200)
    crowd = [Command(listener) for _ in range(MOST_CALLERS + 1)]
    callers.accept(1.0)
    accepted = len(callers)
    for _ in range(MOST_CALLERS):
        callers.accept(1.0)
    full = len(callers)
    for _ in range(MOST_CALLERS):
        list(callers.requests(1.0 + SECONDS_TO_ASK))
    callers.accept(10.0)

    assert (accepted, full, len(callers)) == (MOST_OF_A_TURN, MOST_CALLERS, 1)
    for each in crowd:
        each.channel.close()
