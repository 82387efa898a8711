"""The rendezvous port: the coordinator listens there, then it is reserved for the workers' store."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.network.addresses import Address, loopback_address
from clusterrun.network.rendezvous_port import PortInUse, RendezvousPort, open_rendezvous_port
from clusterrun.ports import bind_wildcard, program
from free_ports import free_port

STORE = """
import socket, sys

from torch.distributed import TCPStore

from clusterrun.network.handshake import MAGIC
from clusterrun.job.declarations import Setting
from clusterrun.network.addresses import loopback_address
from clusterrun.network.rendezvous_port import open_rendezvous_port

here = loopback_address("127.0.0.1")
for backend, port, at in (("libuv", int(sys.argv[1]), ()), ("tcp", int(sys.argv[2]), here)):
    rendezvous_port = open_rendezvous_port(Setting((port,), "--master-port"), "n0", at)
    member = socket.create_connection(("127.0.0.1", port), timeout=10)
    ((connection, _),) = rendezvous_port.accepted()
    rendezvous_port.close()
    store = TCPStore(
        "127.0.0.1", port, 2, True, wait_for_workers=False, use_libuv=backend == "libuv"
    )
    late = socket.create_connection(("127.0.0.1", port), timeout=10)
    late.sendall(MAGIC + bytes(36))
    store.set("key", "value")
    member.sendall(b"still here")
    print(backend, store.get("key").decode(), connection.recv(100).decode())
"""


@pytest.fixture
def port() -> int:
    """Return a free port."""
    return free_port()


@pytest.fixture
def rendezvous_port(port: int) -> Iterator[RendezvousPort]:
    """Return an open port."""
    made = opened(port)
    yield made
    made.release()


def opened(*ports: int, at: str = "") -> RendezvousPort:
    """Open the first free one of ``ports``, at the address ``at`` or at all addresses."""
    only_at = loopback_address(at) if at else ()
    return open_rendezvous_port(Setting(ports, "--master-port"), "n0", only_at)


def call(port: int, host: str = "127.0.0.1") -> socket.socket:
    """Connect to a port of this machine; return the connection."""
    return socket.create_connection((host, port), timeout=5)


def test_members_of_both_families_connect(rendezvous_port: RendezvousPort, port: int) -> None:
    """One socket accepts IPv4 and IPv6 connections."""
    with call(port), call(port, "::1"):
        callers = list(rendezvous_port.accepted())

    for sock, _ in callers:
        sock.close()
    assert [str(address) for _, address in callers] != []
    assert len(callers) == 2
    assert list(rendezvous_port.accepted()) == []


@pytest.mark.parametrize(("at", "elsewhere"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
def test_job_at_loopback_listens_at_one_address(port: int, at: str, elsewhere: str) -> None:
    """No other machine can connect, but the port is in use at all addresses."""
    rendezvous_port = opened(port, at=at)
    with call(port, at):
        callers = list(rendezvous_port.accepted())

        with pytest.raises(ConnectionRefusedError):
            call(port, elsewhere)
        with pytest.raises(PortInUse, match="is in use on n0 by another job"):
            opened(port)
        with closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
            other.bind((elsewhere, port) if "." in elsewhere else ("", port))
    rendezvous_port.release()
    for sock, _ in callers:
        sock.close()
    assert len(callers) == 1


def test_address_of_another_machine_is_an_error() -> None:
    """No node could ever connect."""
    nowhere = Address(socket.AF_INET, "192.0.2.1", 0)
    number = free_port()

    with pytest.raises(PortInUse, match="can't be used on n0: this machine has no address"):
        open_rendezvous_port(Setting((number,), "--master-port"), "n0", [nowhere])


@pytest.mark.parametrize("at", ["", "127.0.0.1"])
def test_closed_port_stays_reserved(port: int, at: str) -> None:
    """The kernel does not choose it, and a store can listen on it."""
    rendezvous_port = opened(port, at=at)
    rendezvous_port.close()

    with pytest.raises(ConnectionRefusedError):
        call(port)
    with closing(socket.socket()) as other, pytest.raises(OSError, match="in use") as caught:
        other.bind(("", port))
    assert caught.value.errno == errno.EADDRINUSE
    with closing(bind_wildcard(port)) as store:
        store.listen()
        call(port).close()
    rendezvous_port.release()


def test_connections_outlive_the_listener(rendezvous_port: RendezvousPort, port: int) -> None:
    with call(port) as member:
        ((ours, _),) = rendezvous_port.accepted()
        rendezvous_port.close()
        member.sendall(b"hello")
        with ours:
            ours.settimeout(5)
            received = ours.recv(100)

    assert received == b"hello"


def test_torchs_store_listens_on_the_rendezvous_port(port: int) -> None:
    """While agents' connections are open and a late node connects to it."""
    pytest.importorskip("torch")

    done = subprocess.run(
        [sys.executable, "-c", STORE, str(port), str(free_port())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    printed = done.stdout.splitlines()
    assert printed == ["libuv value still here", "tcp value still here"], done.stderr


def test_released_port_can_be_opened(port: int) -> None:
    opened(port).release()

    opened(port).release()


def test_port_of_other_jobs_workers_is_an_error(rendezvous_port: RendezvousPort, port: int) -> None:
    """Even before the store of that job listens."""
    rendezvous_port.close()

    with pytest.raises(PortInUse, match="is in use on n0 by another job"):
        opened(port)


def test_first_free_port_of_a_list_is_used(rendezvous_port: RendezvousPort, port: int) -> None:
    other = free_port()

    taken = opened(port, other)

    assert (rendezvous_port.number, taken.number) == (port, other)
    taken.release()


@pytest.mark.parametrize("count", [1, 2])
def test_ports_of_other_programs_are_an_error(count: int) -> None:
    """The error names every port and the program that uses it."""
    ports = [free_port() for _ in range(count)]
    with ExitStack() as servers:
        for each in ports:
            servers.enter_context(socket.create_server(("", each)))
        with pytest.raises(PortInUse) as caught:
            opened(*ports)

    assert caught.value.message == "; ".join(
        f"port {each} (--master-port) is in use on n0 by {program(os.getpid())}" for each in ports
    )
    assert "--master-port" in caught.value.hint
