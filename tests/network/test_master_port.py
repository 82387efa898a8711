"""MASTER_PORT: reserved for the workers."""

import errno
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress

import psutil
import pytest
from clusterrun.errors import RendezvousError
from clusterrun.job.declarations import Setting
from clusterrun.ports import MasterPort, owner_of_port, program
from free_ports import free_port

IP_LOCAL_PORT_RANGE = 51
"""linux/in.h: from where the kernel chooses a port for this socket; Linux 6.3 or newer."""

NOBODY = 65534
"""A user who may not read the /proc files of our processes."""

FAMILIES = [socket.AF_INET, socket.AF_INET6]


@pytest.fixture
def reserved() -> Iterator[MasterPort]:
    """Return a port that is reserved."""
    reserved = MasterPort()
    yield reserved
    reserved.release()


def socket_that_can_only_get(port: int, family: socket.AddressFamily) -> socket.socket:
    """Return a socket for which the kernel has no other port to choose."""
    choosing = socket.socket(family, socket.SOCK_STREAM)
    try:
        only = struct.pack("HH", port, port)
        choosing.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only)
    except OSError:
        choosing.close()
        pytest.skip("this kernel knows no range of ports for one socket")
    return choosing


@pytest.mark.parametrize("reuse", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernel_does_not_choose_a_reserved_port(
    reserved: MasterPort, family: socket.AddressFamily, reuse: int
) -> None:
    """A program that binds to port 0 does not get it, even with SO_REUSEADDR."""
    with closing(socket_that_can_only_get(reserved.number, family)) as choosing:
        choosing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        with pytest.raises(OSError, match="in use") as caught:
            choosing.bind(("", 0))
        reserved.release()
        choosing.bind(("", 0))

        assert caught.value.errno == errno.EADDRINUSE
        assert choosing.getsockname()[1] == reserved.number


def test_no_outgoing_connection_uses_a_reserved_port(reserved: MasterPort) -> None:
    """The kernel chooses the ports of outgoing connections from the same range."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connecting = socket_that_can_only_get(reserved.number, socket.AF_INET)
        with closing(connecting), pytest.raises(OSError, match="assign") as caught:
            connecting.connect(server.getsockname())

        assert caught.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("address", ["", "127.0.0.1"])
def test_server_can_listen_on_a_reserved_port(reserved: MasterPort, address: str) -> None:
    """If it sets SO_REUSEADDR; otherwise it gets EADDRINUSE."""
    with socket.create_server((address, reserved.number)) as server:
        with socket.create_connection(("127.0.0.1", reserved.number), timeout=10) as client:
            accepted, _ = server.accept()

            assert client.getpeername()[1] == reserved.number
        accepted.close()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((address, reserved.number))


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "0.0.0.0"),  # noqa: S104 - what servers usually bind to
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::"),
        (socket.AF_INET6, "::1"),
    ],
)
def test_set_port_in_use_is_an_error(family: socket.AddressFamily, address: str) -> None:
    """The error names the port, its origin, the program and a remedy, at any address."""
    with socket.create_server((address, 0), family=family) as client:
        port = client.getsockname()[1]
        with pytest.raises(RendezvousError) as caught:
            MasterPort(Setting(port, "--master-port"))

    assert caught.value.exit_code == 4
    assert caught.value.explain() == (
        f"clusterrun: error: port {port} (--master-port) is in use on this machine by"
        f" {program(os.getpid())}\n"
        "  stop the program that listens there, set another port, or remove --master-port:\n"
        "  on one machine, or with --rdzv-endpoint, a free port is chosen"
    )


def test_set_port_can_be_reserved_again_once_it_is_free() -> None:
    first = MasterPort()
    first.release()

    again = MasterPort(Setting(first.number, "--master-port"))

    assert again.number == first.number
    again.release()


def test_port_with_time_wait_connections_can_be_reserved(reserved: MasterPort) -> None:
    """They are left from the previous job."""
    with socket.create_server(("127.0.0.1", reserved.number)) as server:
        client = socket.create_connection(("127.0.0.1", reserved.number), timeout=10)
        accepted, _ = server.accept()
        accepted.close()
        with suppress(OSError):
            client.recv(1)
        client.close()
    reserved.release()

    MasterPort(Setting(reserved.number, "--master-port")).release()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")]
)
def test_listening_program_is_named_with_its_pid(
    family: socket.AddressFamily, address: str
) -> None:
    """In both address families."""
    with socket.create_server((address, 0), family=family) as server:
        owner = owner_of_port(server.getsockname()[1])

    assert owner == f"{psutil.Process().name()} (pid {os.getpid()})"


def test_control_characters_in_a_program_name_are_replaced() -> None:
    names = "open('/proc/self/comm', 'w').write('\\x1b[2Jsh\\u202e')"
    listens = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1])"
    code = f"{names}; {listens}; import sys; sys.stdout.flush(); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as job:
        assert job.stdout is not None
        owner = owner_of_port(int(job.stdout.readline()))
        job.communicate("\n", timeout=30)

    assert owner == f"?[2Jsh? (pid {job.pid})"


@pytest.mark.needs("root")
def test_program_of_another_user_is_not_named() -> None:
    """The kernel shows that a program listens, but not which one."""
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


def test_connected_program_is_not_the_listener() -> None:
    """A different program can listen on the local port of a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert owner_of_port(client.getsockname()[1]) == "another program"


def test_port_without_listener_has_no_program() -> None:
    """The listener may have closed before its owner was looked up."""
    assert owner_of_port(free_port()) == "another program"


def test_ended_process_has_a_pid_and_no_name() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

    assert program(pid) == f"a program (pid {pid})"
