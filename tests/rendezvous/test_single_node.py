"""The world of a job on one machine."""

import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from clusterrun.domain.job import JobSpec
from clusterrun.domain.outcome import OutputGone
from clusterrun.domain.world import World
from clusterrun.errors import RendezvousError
from clusterrun.rendezvous.ports.held_port import hold_free_port
from clusterrun.rendezvous.single_node import SingleNode

from tests.plans import job


def node_of(described: JobSpec, workers: int = 4) -> Iterator[SingleNode]:
    """Yield the node, and let go of its port."""
    node = SingleNode(described, workers)
    yield node
    node.leave()


@pytest.fixture
def node() -> Iterator[SingleNode]:
    """Return a node whose port is chosen."""
    yield from node_of(job())


@pytest.fixture
def given() -> Iterator[SingleNode]:
    """Return a node whose port was given, and is free."""
    free = hold_free_port()
    free.release()
    yield from node_of(job(master_port=free.number))


def listens(port: int | None) -> bool:
    """Tell whether somebody who wants this very port, and no other's leavings, gets it."""
    assert port is not None
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def test_all_there_is_to_know(node: SingleNode) -> None:
    """One node that has all ranks, and meets itself on loopback."""
    world = node.world(3)

    assert world == World(
        run_id="run",
        attempt=3,
        node_rank=world.node_rank,
        nodes=1,
        first_rank=world.first_rank,
        local_size=4,
        size=4,
        first_role_rank=world.first_rank,
        role_size=4,
        master_addr="127.0.0.1",
        master_port=world.master_port,
    )
    assert (world.node_rank, world.first_rank) == (0, 0)


def test_a_chosen_port_is_fresh_in_every_attempt(node: SingleNode) -> None:
    """What is left of the attempt before can't meet the next one; and only the last is held."""
    ports = [node.world(attempt).master_port for attempt in range(5)]

    assert all(before != after for before, after in pairwise(ports))
    assert [listens(port) for port in ports] == [True] * 4 + [False]


def test_a_given_port_is_kept(given: SingleNode) -> None:
    """Firewalls know it."""
    ports = {given.world(attempt).master_port for attempt in range(3)}

    assert len(ports) == 1
    assert not listens(*ports)


def test_a_given_port_that_somebody_else_has(given: SingleNode) -> None:
    """It is an error even in a later attempt."""
    port = given.world(0).master_port
    with socket.create_server(("", port or 0)), pytest.raises(RendezvousError):
        given.world(1)


def test_leaving(node: SingleNode) -> None:
    """The port is free again; leaving twice, or without ever having met, is leaving."""
    node.leave()
    port = node.world(0).master_port
    node.leave()
    node.leave()

    assert listens(port)


def test_there_is_nobody_else(node: SingleNode) -> None:
    """Nobody has news, and nobody is told any."""
    node.tell_external_cause(OutputGone())
    node.tell_done([], now=1.0, external_cause=None)

    assert node.sources == ()
