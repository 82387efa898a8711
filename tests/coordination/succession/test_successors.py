"""What the coordinator lets its agents know about its successors."""

from tests.coordination.door import (
    Place,
    ReformRules,
    Send,
    Succession,
    Successor,
    inform,
)
from tests.coordination.succession.lost_coordinator import known_to, running_job, standby
from tests.rendezvous.nodes import opened_job
from tests.rendezvous.replay import Replay


def test_the_first_three_by_rank_are_successors() -> None:
    """All agents know them; only they know the places."""
    job = running_job(6)

    known = known_to(job, 5)

    assert known.successors == tuple(
        Successor(f"agent {number}", number, f"10.0.0.{number}", 1000 + number)
        for number in (1, 2, 3)
    )
    assert (known.attempt, known.agents, known.agents_before, known.places) == (0, 6, 0, ())
    assert known_to(job, 1).places == tuple(Place(f"n{n}", 1, "default") for n in range(6))
    assert not any(isinstance(message, Succession) for message in job.sent_to(0))


def test_spares_are_no_successors() -> None:
    """They know them."""
    job = running_job(3, spares=1)

    assert [each.node_rank for each in known_to(job, 2).successors] == [1]


def test_a_job_without_failover_has_none() -> None:
    """Its agents get no such message."""
    job = Replay(opened_job(3, reforming=ReformRules(1)))
    job.joins(1, standby=standby(1))
    job.joins(2, standby=standby(2))

    assert not any(isinstance(message, Succession) for _, message in job.sent)


def test_a_loopback_address_is_no_use_to_others() -> None:
    """Unless all agents are on one machine."""
    job = running_job(3)
    hello = job.state.members.remove(1)
    job.state.members.add(1, hello, "127.0.0.1")

    [_, known] = [each.message for each in inform(job.state) if isinstance(each, Send)]

    assert isinstance(known, Succession)
    assert [each.node_rank for each in known.successors] == [2]
