"""Node 0 is lost: the others follow a successor, on loopback."""

from collections.abc import Iterator

import pytest
from free_ports import free_port

from tests.network.door import (
    HeartbeatRhythm,
    done,
    events,
    messages,
    outcome,
)
from tests.network.nodes import fate, job_terms
from tests.network.test_peers import Job


def elastic_job(nodes: int) -> Iterator[Job]:
    """Yield a job that goes on with any number of nodes."""
    # Seldom: what an agent that leaves has not read makes its kernel reset the connections.
    rhythm = HeartbeatRhythm(1.0, 2.5)
    port = free_port()
    terms = job_terms(port, nodes, fewest_nodes=1, keeps_joining_port=True, rhythm=rhythm)
    made = Job(nodes, terms)
    made.goes_quiet()
    yield made
    for peers in made.nodes:
        peers.leaves()


@pytest.fixture
def job() -> Iterator[Job]:
    """Return a job of three nodes."""
    yield from elastic_job(3)


@pytest.fixture
def job_of_four() -> Iterator[Job]:
    """Return a job of four nodes."""
    yield from elastic_job(4)


def test_the_others_go_on(job: Job) -> None:
    """Once their workers have ended: with the first of them as the coordinator; and end together."""
    job.nodes[0].leaves()
    for number in (1, 2):
        [sought] = job.receives(number)
        assert isinstance(sought, events.CoordinatorSought)
        assert sought.node == outcome.NodeLost(0, "n0", "is gone")
        job.nodes[number].sends(done(0, (), 0.0, None))

    for number in (1, 2):
        order = job.receives(number, 2)[-1]
        assert isinstance(order, messages.NextAttempt)
        assert (order.world.node_rank, order.world.nodes) == (number - 1, 2)
    for number in (1, 2):
        job.nodes[number].sends(done(1, [fate(number - 1)], 0.0, None))
    for number in (1, 2):
        assert job.receives(number, 3)[-1] == messages.Verdict(outcome.Succeeded(), "")


def test_what_ranks_have_left_runs_on_no_lease(job: Job) -> None:
    """The job has succeeded, and no member renews a lease any more."""
    for node in job.nodes:
        node.sends(messages.RanksSucceeded(0))

    assert job.reasons() == [outcome.Succeeded()] * 3
    # Node 0 sees the others leave.
    job.goes_quiet()
    assert [leases[-1] for leases in job.leases] == [None] * 3


def test_one_after_the_other_is_lost(job_of_four: Job) -> None:
    """The successor has successors, too."""
    job = job_of_four
    job.nodes[0].leaves()
    for number in (1, 2, 3):
        job.receives(number)
        job.nodes[number].sends(done(0, (), 0.0, None))
    for number in (1, 2, 3):
        job.receives(number, 2)
    job.goes_quiet()

    job.nodes[1].leaves()

    for number in (2, 3):
        sought = job.receives(number, 3)[-1]
        assert isinstance(sought, events.CoordinatorSought)
        assert (sought.node.host, sought.node.node_rank) == ("n1", 0)
        job.nodes[number].sends(done(1, (), 0.0, None))
    for number in (2, 3):
        order = job.receives(number, 4)[-1]
        assert isinstance(order, messages.NextAttempt)
        assert (order.reason, order.world.attempt) == (outcome.NodeLost(0, "n1"), 2)
        assert (order.world.node_rank, order.world.nodes) == (number - 2, 2)


def test_a_node_that_is_to_end_follows_no_successor(job: Job) -> None:
    """Its user has ended it meanwhile."""
    job.nodes[0].leaves()
    job.receives(2)

    job.nodes[2].sends(messages.EndedExternally(0, outcome.Interrupted(15)))

    assert isinstance(job.received(2)[-1], events.CoordinatorLost)
    received = job.received(2)
    job.nodes[2].sends(done(0, (), 0.0, outcome.Interrupted(15)))
    job.nodes[2].sends(done(0, (), 0.0, None))
    assert job.received(2) == received
