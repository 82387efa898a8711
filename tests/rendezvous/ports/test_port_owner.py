"""Which program has a port, found out on this machine."""

import os
import socket

import psutil
import pytest
from clusterrun.rendezvous.ports.port_owner import owner_of_port, program

from tests.rendezvous.nodes import free_port

NOBODY = 65534
"""A user that may not look into our processes."""


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_the_program_that_listens_is_named(family: socket.AddressFamily, address: str) -> None:
    """In either family."""
    with socket.create_server((address, 0), family=family) as server:
        owner = owner_of_port(server.getsockname()[1])

    assert owner == f"{psutil.Process().name()} (pid {os.getpid()})"


@pytest.mark.needs("root")
def test_a_program_of_another_user() -> None:
    """The kernel shows that it listens, and not which process it is."""
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        owner_of_port(port)  # A user who may not read our folders can't import psutil there.
        if (pid := os.fork()) == 0:
            server.close()
            os.setuid(NOBODY)
            os.write(write, owner_of_port(port).encode())
            os._exit(0)
        os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert answer.read() == "a program of another user or container"


def test_a_connection_does_not_have_its_port() -> None:
    """A listener can be opened beside it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert owner_of_port(client.getsockname()[1]) == "another program"


def test_a_port_without_a_listener() -> None:
    """It may have closed meanwhile."""
    assert owner_of_port(free_port()) == "another program"


def test_a_process_that_has_ended() -> None:
    """Its name is not known any more."""
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

    assert program(pid) == f"a program (pid {pid})"
