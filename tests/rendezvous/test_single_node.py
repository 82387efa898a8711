"""A job on one machine: its world, and the answers of its coordinator."""

import signal
import socket
from collections.abc import Iterator
from itertools import pairwise

import pytest
from free_ports import free_port

from tests.plans import job
from tests.rendezvous.door import (
    NEVER,
    CoordinatorSent,
    HelperFailed,
    Interrupted,
    Job,
    LookOrdered,
    OutputGone,
    RendezvousError,
    RestartProgress,
    SingleNode,
    StackGroup,
    Succeeded,
    WorkerFailed,
    World,
    looks,
    messages,
)
from tests.rendezvous.nodes import fate

NOW = 100.0
FAILED = fate(1, 3, tail="ValueError: it", ran_for=60.0)
STACKS = StackGroup((0, 1), "File f")


class OneNode(SingleNode):
    """A node of four workers that keeps the lines for people."""

    def __init__(self, described: Job) -> None:
        self.printed: list[str] = []
        super().__init__(described, "n0", 4, self.printed.append, lambda: NOW)

    def sends(self, message: messages.AgentMessage) -> list[messages.Order]:
        """Send a message; return the coordinator's answers."""
        answers = []
        for event in self.send(message):
            assert isinstance(event, CoordinatorSent)
            assert event.at == NOW
            answers.append(event.message)
        return answers

    def orders(self, message: messages.AgentMessage) -> list[messages.LookOrder]:
        """Send a message; return what follows of looks."""
        return [event.order for event in self.send(message) if isinstance(event, LookOrdered)]

    def fails(self) -> list[messages.Order]:
        """Report one failed worker; return the answer to its end."""
        self.send(messages.FirstFailure(self._world.attempt, FAILED, 0.1))
        return self.sends(messages.done(self._world.attempt, [FAILED], FAILED.clock, None))


def node_of(described: Job) -> Iterator[OneNode]:
    """Yield the node, and let go of its port."""
    node = OneNode(described)
    yield node
    node.leave()


@pytest.fixture
def node() -> Iterator[OneNode]:
    """Return a node whose port is chosen."""
    yield from node_of(job(max_restarts=9, no_fail_fast=True))


@pytest.fixture
def given() -> Iterator[OneNode]:
    """Return a node whose port was given, and is free."""
    yield from node_of(job(master_port=free_port(), max_restarts=9, no_fail_fast=True))


def listens(port: int | None) -> bool:
    """Return whether a socket without address reuse can bind this port."""
    assert port is not None
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def worlds(node: OneNode, attempts: int) -> Iterator[World]:
    """Yield the worlds of some attempts, all of which fail."""
    for attempt in range(attempts):
        yield node.world(attempt)
        node.fails()


def test_all_there_is_to_know(node: OneNode) -> None:
    """One node that has all ranks, and meets itself on loopback."""
    [*_, world] = worlds(node, 4)

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


def test_a_chosen_port_is_fresh_in_every_attempt(node: OneNode) -> None:
    """What is left of the attempt before can't meet the next one; and only the last is held."""
    ports = [world.master_port for world in worlds(node, 5)] + [node.world(5).master_port]

    assert all(before != after for before, after in pairwise(ports))
    assert [listens(port) for port in ports] == [True] * 5 + [False]


def test_a_given_port_is_kept(given: OneNode) -> None:
    """Firewalls know it."""
    ports = {world.master_port for world in worlds(given, 3)}

    assert len(ports) == 1
    assert not listens(*ports)


def test_a_given_port_that_somebody_else_has(given: OneNode) -> None:
    """It is an error even in a later attempt."""
    port = given.world(0).master_port
    given.fails()
    with socket.create_server(("", port or 0)), pytest.raises(RendezvousError):
        given.world(1)


def test_leaving(node: OneNode) -> None:
    """The port is free again; leaving twice is leaving."""
    port = node.world(0).master_port
    node.leave()
    node.leave()

    assert listens(port)


def test_success(node: OneNode) -> None:
    """Every worker ended with exit code 0; no answer comes later."""
    [verdict] = node.sends(messages.done(0, [fate(rank) for rank in range(4)], NOW, None))

    assert verdict == messages.Verdict(Succeeded(), "")
    assert [source.due for source in node.sources] == [NEVER]


def test_a_failure_is_followed_by_the_next_attempt(node: OneNode) -> None:
    """The coordinator's order to stop comes at once, and finds the workers stopping."""
    stop = node.sends(messages.FirstFailure(0, FAILED, 0.1))
    again = node.sends(messages.done(0, [FAILED], FAILED.clock, None))

    assert stop == [messages.Stop(0, "rank 1 on n0 failed")]
    once = RestartProgress(restarts=1)
    assert again == [messages.NextAttempt(node.world(1), WorkerFailed(FAILED), once)]
    assert node.world(1).attempt == 1


def test_the_whole_output_of_a_failed_worker_is_kept(node: OneNode) -> None:
    """It travels nowhere, and needs no bounds."""
    failed = fate(1, 3, tail="x" * 100_000)
    node.send(messages.FirstFailure(0, failed, 0.0))
    [again] = node.sends(messages.done(0, [failed], failed.clock, None))

    once = RestartProgress(restarts=1)
    assert again == messages.NextAttempt(node.world(1), WorkerFailed(failed), once)


def test_a_signal_prevents_the_restart(node: OneNode) -> None:
    """A line says so, and the job ends by the signal."""
    node.send(messages.FirstFailure(0, FAILED, 0.1))
    node.send(messages.EndedExternally(0, Interrupted(signal.SIGINT)))
    [verdict] = node.sends(messages.done(0, [FAILED], FAILED.clock, Interrupted(signal.SIGINT)))

    assert node.printed == ["interrupted: no restart; exit code 130"]
    assert verdict == messages.Verdict(Interrupted(signal.SIGINT), "")


@pytest.mark.parametrize("cause", [OutputGone(), HelperFailed("fork server", "was killed", 9)])
def test_an_external_cause(node: OneNode, cause: OutputGone | HelperFailed) -> None:
    """On one node its name needs no host."""
    node.send(messages.EndedExternally(0, cause))
    [verdict] = node.sends(messages.done(0, [fate(rank) for rank in range(4)], NOW, cause))

    assert verdict == messages.Verdict(cause, "")


def test_stacks(node: OneNode) -> None:
    """Asked for by the only node, and shown by it, as often as its ranks do not move."""
    shown = looks.NodeStacks(0, "n0", (STACKS,))
    for number in (1, 2):
        [asked] = node.orders(messages.Idle(0, 60.0))
        part, end = node.orders(messages.Part(number, shown))

        assert asked == messages.Ask(number, looks.LookAtStacks(patient=True))
        assert part == messages.Part(messages.ON_NODE_ZERO, shown)
        assert end == messages.End(messages.ON_NODE_ZERO)
    moves = "no rank has printed or exited for 60 s"
    hangs = f"{moves}: the Python stacks of all ranks follow; nothing is ended"
    assert node.printed == [hangs] * 2
    assert node.sends(messages.Idle(0, 0.0)) == []


def test_a_suspension_concerns_nobody_else(node: OneNode) -> None:
    """It is over when it is over."""
    assert node.sends(messages.Paused(paused=True)) == []
    assert node.sends(messages.Paused(paused=False)) == []
