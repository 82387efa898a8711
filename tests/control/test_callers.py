"""The connections of commands to an agent."""

import resource
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.control.door import (
    NEVER,
    SECONDS_WITHOUT_DESCRIPTORS,
    Callers,
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


def test_without_descriptors_it_waits(listener: socket.socket) -> None:
    """The agent's loop must not turn for a command that can't be accepted; later it is."""
    callers = Callers()
    callers.listen(listener)
    ready = select.poll()
    ready.register(callers.fileno(), select.POLLIN)
    with socket.socket(socket.AF_UNIX) as command:
        command.connect(listener.getsockname())
        with no_descriptors():
            callers.accept(10.0)

        assert ready.poll(0) == []
        assert callers.due == 10.0 + SECONDS_WITHOUT_DESCRIPTORS
        callers.accept(callers.due)
        command.sendall(b"ask")
        command.shutdown(socket.SHUT_WR)
        # Its words, and then their end.
        assert list(callers.requests(11.0)) == []
        assert [request for _, request in callers.requests(11.0)] == [b"ask"]
        assert callers.due < NEVER
    callers.close()
