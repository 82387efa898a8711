"""A single-node job: its world, and the answers of its coordinator."""

import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from clusterrun.bounds import GlobalRank, LocalRank
from clusterrun.errors import RendezvousError
from clusterrun.job.job import Job
from clusterrun.loop import Loop
from clusterrun.planning.plan import World
from clusterrun.policy import messages
from clusterrun.policy.events import CoordinatorSent, Event, WorldJoined
from clusterrun.policy.outcome import Exited, RestartProgress, WorkerFailed, WorkerResult
from clusterrun.run.single_node import SingleNodeMembership, hello_of_single_node
from free_ports import free_port

from tests.plans import job

NOW = 100.0


def result(rank: int, code: int = 0, tail: str = "") -> WorkerResult:
    """Return the result of a worker that ended with exit code ``code``."""
    return WorkerResult(
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank),
        host="n0",
        pid=1000 + rank,
        exit_status=Exited(code),
        stopped_by_us=False,
        clock=0.0,
        ran_for=60.0,
        tail=tail,
        log="",
        error="",
        out_of_memory="",
    )


FAILED = result(1, 3, "ValueError: it")


def done(attempt: int, failed: WorkerResult) -> messages.Done:
    """Return the report of a node on which this worker has failed."""
    return messages.Done(attempt, (messages.DatedResult(failed, NOW),), None)


class SingleNodeHarness:
    """A node of four workers, and its worlds."""

    def __init__(self, described: Job) -> None:
        self.printed: list[str] = []
        """The lines for people."""
        self.loop = Loop[Event](lambda: NOW)
        self.node = SingleNodeMembership(
            described, hello_of_single_node(described, "n0", 4), self.printed.append, self.loop
        )
        self.worlds: list[World] = []
        """Of its attempts."""
        begins = self.loop.next_event()
        assert isinstance(begins, WorldJoined)
        self.worlds.append(begins.world)

    @property
    def world(self) -> World:
        return self.worlds[-1]

    def send(self, message: messages.AgentMessage) -> list[messages.Order]:
        """Send a message; return the coordinator's answers."""
        answers = []
        for event in self.node.send(message):
            assert isinstance(event, CoordinatorSent)
            assert event.at == NOW
            answers.append(event.message)
            if isinstance(event.message, messages.NextAttempt):
                self.worlds.append(event.message.world)
        return answers

    def fail_worker(self) -> list[messages.Order]:
        """Report one failed worker; return the answer to its end."""
        self.send(messages.FirstFailure(self.world.attempt, FAILED, 0.1))
        return self.send(done(self.world.attempt, FAILED))


def started_node(described: Job) -> Iterator[SingleNodeHarness]:
    """Yield a node, and release its port."""
    made = SingleNodeHarness(described)
    yield made
    made.node.leave()
    made.loop.close()


@pytest.fixture
def node() -> Iterator[SingleNodeHarness]:
    """Return a node whose port is chosen."""
    yield from started_node(job(max_restarts=9, no_fail_fast=True))


@pytest.fixture
def given() -> Iterator[SingleNodeHarness]:
    """Return a node whose port was set and is free."""
    yield from started_node(job(master_port=free_port(), max_restarts=9, no_fail_fast=True))


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


def test_world_of_a_single_node(node: SingleNodeHarness) -> None:
    """It has all ranks, and MASTER_ADDR is the loopback address."""
    for _ in range(3):
        node.fail_worker()

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
    assert node.node.node_zero == "n0"


def test_chosen_port_differs_in_every_attempt(node: SingleNodeHarness) -> None:
    """Processes of the previous attempt can't connect to the next one. Only the last port is reserved."""
    for _ in range(5):
        node.fail_worker()

    of_attempts = ports(node.worlds)
    assert all(before != after for before, after in pairwise(of_attempts))
    assert [is_free(port) for port in of_attempts] == [True] * 5 + [False]


def test_set_port_is_kept(given: SingleNodeHarness) -> None:
    """A firewall may allow it. It is reserved from the start."""
    was_reserved = not is_free(given.world.master_port)
    for _ in range(2):
        given.fail_worker()

    assert was_reserved
    assert len(given.worlds) == 3
    assert len(set(ports(given.worlds))) == 1
    assert not is_free(given.world.master_port)


def test_set_port_in_use_by_a_left_process_is_an_error(given: SingleNodeHarness) -> None:
    """It is released and reserved again for each attempt."""
    port = given.world.master_port
    with socket.socket() as left:
        # Like torch's store, which listens on the reserved port.
        left.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        left.bind(("", port or 0))
        left.listen()
        with pytest.raises(RendezvousError, match=f"port {port} .* is in use on this machine"):
            given.fail_worker()


def test_leaving_releases_the_port(node: SingleNodeHarness) -> None:
    """Leaving twice is harmless."""
    node.node.leave()
    node.node.leave()

    assert is_free(node.world.master_port)


def test_output_of_a_failed_worker_is_not_cut(node: SingleNodeHarness) -> None:
    """It is not sent to another node."""
    failed = result(1, 3, "x" * 100_000)
    node.send(messages.FirstFailure(0, failed, 0.0))
    [again] = node.send(done(0, failed))

    once = RestartProgress(restarts=1)
    assert again == messages.NextAttempt(node.world, WorkerFailed(failed), once)
