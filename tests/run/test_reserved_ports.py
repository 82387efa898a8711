"""Reserved ports of a job's programs: no other program gets them, and a server can listen there."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from clusterrun.errors import RendezvousError
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.services import Service
from clusterrun.planning.plan import WorkerSlot
from clusterrun.run.reserved_ports import ReservedPorts
from free_ports import free_port

Hold = Callable[..., ReservedPorts]


class Group(NamedTuple):
    """So many workers of a service."""

    service: Service
    workers: int


def workers_of(name: str, workers: int, port: int | None = None) -> Group:
    program = WorkerProgram(ProgramKind.EXECUTABLE, "server", ())
    origins = {"port": f"job.yaml:4 services.{name}.port"}
    service = Service(name=name, where="job.yaml:2", program=program, port=port, origins=origins)
    return Group(service, workers)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Return a function that reserves ports until the test ends."""
    with ExitStack() as stack:

        def made(workers: int, *groups: Group) -> ReservedPorts:
            slots = [WorkerSlot(())] * workers
            for service, count in groups:
                slots += [WorkerSlot((), program=service.name)] * count
            reserved = ReservedPorts([service for service, _ in groups], slots)
            stack.callback(reserved.release)
            return reserved

        yield made


def test_every_worker_and_every_program_gets_a_port(hold: Hold) -> None:
    """All are different."""
    main, server, judge = hold(2, workers_of("server", 3), workers_of("judge", 1)).offers

    assert [(each.name, len(each.ports)) for each in (main, server, judge)] == [
        ("main", 2),
        ("server", 3),
        ("judge", 1),
    ]
    numbers = [port for each in (main, server, judge) for port in (*each.ports, each.master_port)]
    assert len(set(numbers)) == len(numbers) == 9


def test_node_without_the_main_program_has_no_port_for_it(hold: Hold) -> None:
    assert [each.name for each in hold(0, workers_of("server", 1)).offers] == ["server"]


def test_server_can_listen_on_a_reserved_port(hold: Hold) -> None:
    """With SO_REUSEADDR, which nearly all servers set."""
    ((port,),) = [each.ports for each in hold(0, workers_of("server", 1)).offers]

    with socket.create_server(("127.0.0.1", port)):
        socket.create_connection(("127.0.0.1", port)).close()


def test_set_port_is_followed_by_the_next_ones(hold: Hold) -> None:
    """They are not reserved, because a server may bind without SO_REUSEADDR."""
    port = free_port()
    (offer,) = hold(0, workers_of("server", 1, port)).offers

    assert offer.ports == (port,)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()


def test_set_port_in_use_is_an_error(hold: Hold) -> None:
    """Before anything has started; the error names the program."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(RendezvousError) as caught:
            hold(0, workers_of("server", 1, port))

    text = f"port {port} (job.yaml:4 services.server.port) is in use on this machine by "
    assert str(caught.value).startswith(text)
