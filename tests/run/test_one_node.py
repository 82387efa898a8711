"""A job on one machine: its world, and the answers of its coordinator."""

import signal
import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from free_ports import free_port

from tests.plans import job
from tests.run.door import (
    NEVER,
    CoordinatorSent,
    Event,
    Exited,
    Fate,
    GlobalRank,
    HelperFailed,
    Interrupted,
    Job,
    LocalRank,
    LookOrdered,
    Loop,
    OneNode,
    OutputGone,
    RendezvousError,
    RestartProgress,
    StackGroup,
    Succeeded,
    WorkerFailed,
    World,
    WorldJoined,
    looks,
    messages,
)

NOW = 100.0
STACKS = StackGroup((0, 1), "File f")


def fate(rank: int, code: int = 0, tail: str = "") -> Fate:
    """Return the fate of a worker that ended with exit code ``code``."""
    return Fate(
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank),
        host="n0",
        pid=1000 + rank,
        ending=Exited(code),
        stopped_by_us=False,
        clock=0.0,
        ran_for=60.0,
        tail=tail,
        log="",
        error="",
        out_of_memory="",
    )


FAILED = fate(1, 3, "ValueError: it")


class Told:
    """A node of four workers, and what its agent learns."""

    def __init__(self, described: Job) -> None:
        self.printed: list[str] = []
        """The lines for people."""
        self.loop = Loop[Event](lambda: NOW)
        self.node = OneNode(described, "n0", 4, self.printed.append, self.loop)
        self.worlds: list[World] = []
        """Of its attempts."""
        begins = self.loop.next_event()
        assert isinstance(begins, WorldJoined)
        self.worlds.append(begins.world)

    @property
    def world(self) -> World:
        return self.worlds[-1]

    def sends(self, message: messages.AgentMessage) -> list[messages.Order]:
        """Send a message; return the coordinator's answers."""
        answers = []
        for event in self.node.send(message):
            assert isinstance(event, CoordinatorSent)
            assert event.at == NOW
            answers.append(event.message)
            if isinstance(event.message, messages.NextAttempt):
                self.worlds.append(event.message.world)
        return answers

    def orders(self, message: messages.AgentMessage) -> list[messages.LookOrder]:
        """Send a message; return what follows of looks."""
        return [event.order for event in self.node.send(message) if isinstance(event, LookOrdered)]

    def fails(self) -> list[messages.Order]:
        """Report one failed worker; return the answer to its end."""
        self.sends(messages.FirstFailure(self.world.attempt, FAILED, 0.1))
        return self.sends(messages.done(self.world.attempt, [FAILED], FAILED.clock, None))


def told(described: Job) -> Iterator[Told]:
    """Yield the node, and let go of its port."""
    made = Told(described)
    yield made
    made.node.leave()
    made.loop.close()


@pytest.fixture
def node() -> Iterator[Told]:
    """Return a node whose port is chosen."""
    yield from told(job(max_restarts=9, no_fail_fast=True))


@pytest.fixture
def given() -> Iterator[Told]:
    """Return a node whose port was given, and is free."""
    yield from told(job(master_port=free_port(), max_restarts=9, no_fail_fast=True))


def is_free(port: int | None) -> bool:
    """Return whether a socket without address reuse can bind this port."""
    assert port is not None
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def ports(worlds: Iterable[World]) -> list[int | None]:
    return [each.master_port for each in worlds]


def test_all_there_is_to_know(node: Told) -> None:
    """One node that has all ranks, and meets itself on loopback."""
    for _ in range(3):
        node.fails()

    assert node.world == World(
        run_id="run",
        attempt=3,
        node_rank=node.world.node_rank,
        nodes=1,
        first_rank=node.world.first_rank,
        local_size=4,
        size=4,
        first_role_rank=node.world.first_rank,
        role_size=4,
        master_addr="127.0.0.1",
        master_port=node.world.master_port,
    )
    assert (node.world.node_rank, node.world.first_rank) == (0, 0)
    assert node.node.coordinator() == (0, "n0")


def test_a_chosen_port_is_fresh_in_every_attempt(node: Told) -> None:
    """What is left of the attempt before can't meet the next one; and only the last is held."""
    for _ in range(5):
        node.fails()

    of_attempts = ports(node.worlds)
    assert all(before != after for before, after in pairwise(of_attempts))
    assert [is_free(port) for port in of_attempts] == [True] * 5 + [False]


def test_a_given_port_is_kept(given: Told) -> None:
    """Firewalls know it. It is held from the beginning, so that no other program gets it."""
    held = not is_free(given.world.master_port)
    for _ in range(2):
        given.fails()

    assert held
    assert len(given.worlds) == 3
    assert len(set(ports(given.worlds))) == 1
    assert not is_free(given.world.master_port)


def test_a_given_port_that_somebody_else_has() -> None:
    """Then no worker starts."""
    with socket.create_server(("", 0)) as other, pytest.raises(RendezvousError, match="is in use"):
        Told(job(master_port=other.getsockname()[1]))


def test_a_given_port_where_a_process_is_left(given: Told) -> None:
    """It is let go and held again for each attempt: what listens there is an error."""
    port = given.world.master_port
    with socket.socket() as left:
        # As torch's store, beside what holds the port for it.
        left.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        left.bind(("", port or 0))
        left.listen()
        with pytest.raises(RendezvousError, match=f"port {port} .* is in use on this machine"):
            given.fails()


def test_leaving(node: Told) -> None:
    """The port is free again; leaving twice is leaving."""
    node.node.leave()
    node.node.leave()

    assert is_free(node.world.master_port)


def test_success(node: Told) -> None:
    """Every worker ended with exit code 0; no answer comes later."""
    [verdict] = node.sends(messages.done(0, [fate(rank) for rank in range(4)], NOW, None))

    assert verdict == messages.Verdict(Succeeded(), "")
    assert node.node.due == NEVER


def test_a_failure_is_followed_by_the_next_attempt(node: Told) -> None:
    """The coordinator's order to stop comes at once, and finds the workers stopping."""
    stop = node.sends(messages.FirstFailure(0, FAILED, 0.1))
    again = node.sends(messages.done(0, [FAILED], FAILED.clock, None))

    assert stop == [messages.Stop(0, "rank 1 on n0 failed")]
    once = RestartProgress(restarts=1)
    assert again == [messages.NextAttempt(node.world, WorkerFailed(FAILED), once)]
    assert node.world.attempt == 1


def test_the_whole_output_of_a_failed_worker_is_kept(node: Told) -> None:
    """It travels nowhere, and needs no bounds."""
    failed = fate(1, 3, "x" * 100_000)
    node.sends(messages.FirstFailure(0, failed, 0.0))
    [again] = node.sends(messages.done(0, [failed], failed.clock, None))

    once = RestartProgress(restarts=1)
    assert again == messages.NextAttempt(node.world, WorkerFailed(failed), once)


def test_a_signal_prevents_the_restart(node: Told) -> None:
    """A line says so, and the job ends by the signal."""
    node.sends(messages.FirstFailure(0, FAILED, 0.1))
    node.sends(messages.EndedExternally(0, Interrupted(signal.SIGINT)))
    [verdict] = node.sends(messages.done(0, [FAILED], FAILED.clock, Interrupted(signal.SIGINT)))

    assert node.printed == ["interrupted: no restart; exit code 130"]
    assert verdict == messages.Verdict(Interrupted(signal.SIGINT), "")


@pytest.mark.parametrize("cause", [OutputGone(), HelperFailed("fork server", "was killed", 9)])
def test_an_external_cause(node: Told, cause: OutputGone | HelperFailed) -> None:
    """On one node its name needs no host."""
    node.sends(messages.EndedExternally(0, cause))
    [verdict] = node.sends(messages.done(0, [fate(rank) for rank in range(4)], NOW, cause))

    assert verdict == messages.Verdict(cause, "")


def test_stacks(node: Told) -> None:
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


def test_a_suspension_concerns_nobody_else(node: Told) -> None:
    """It is over when it is over."""
    assert node.sends(messages.Paused(paused=True)) == []
    assert node.sends(messages.Paused(paused=False)) == []
