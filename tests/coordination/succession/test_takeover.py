"""A successor gathers the agents of a lost coordinator."""

import pytest
from msgspec.structs import replace

from tests.coordination.door import (
    OWN,
    HostFaults,
    JobPhase,
    Killed,
    LeftCoordinator,
    MessageReceived,
    NextAttempt,
    NodeLost,
    ReformRules,
    RequestSuspension,
    SuccessionKnown,
    Verdict,
    WorldFormed,
    taken_over,
)
from tests.coordination.succession.lost_coordinator import (
    SECONDS,
    claiming,
    comes,
    gathers,
    is_in_world,
    is_refused,
    known_to,
    running_job,
)
from tests.rendezvous.nodes import TERMS, fate, hello

SPARES = ReformRules(spares=1, fails_over=True)


def test_the_next_attempt_begins_when_all_have_come() -> None:
    """At once; the workers meet on the first node that lives, which is the successor's."""
    known = known_to(running_job(3), 1)
    successor = gathers(known, 1)

    comes(successor, claiming(known, 2, 2), 1)

    orders = {n: m for n, m in successor.sent if isinstance(m, NextAttempt)}
    assert {n: order.world.node_rank for n, order in orders.items()} == {OWN: 0, 1: 1}
    assert {order.world.master_addr for order in orders.values()} == {"10.0.0.1"}
    assert {order.world.attempt for order in orders.values()} == {1}
    assert orders[OWN].reason == NodeLost(0, "n0")
    assert orders[OWN].progress.losses == 1


def test_a_spare_takes_the_place_of_node_zero() -> None:
    """The workers meet there, at the port that it holds; the world keeps its size."""
    known = known_to(running_job(3, spares=1), 1)
    successor = gathers(known, 1, reforming=SPARES)

    comes(successor, claiming(known, 2, None), 1)

    [formed] = [m for m in successor.sent_to(1) if isinstance(m, WorldFormed)]
    assert (formed.world.node_rank, formed.world.size) == (0, 2)
    assert (formed.world.master_addr, formed.world.master_port) == ("10.0.0.2", 2002)
    assert formed.host == "n1"
    [order] = [m for m in successor.sent_to(OWN) if isinstance(m, NextAttempt)]
    assert (order.world.node_rank, order.world.master_addr) == (1, "10.0.0.2")


def test_soon_after_more_than_half_have_come() -> None:
    """The others may come for a moment; the attempt begins without them, once leases are over."""
    known = known_to(running_job(5), 1)
    successor = gathers(known, 1, age=14.0)
    comes(successor, claiming(known, 2, 2, age=10.0), 1)
    assert successor.state.pause_ends == SECONDS
    comes(successor, claiming(known, 3, 3, age=14.0), 2)

    successor.waits(4.9)
    assert is_in_world(successor) == set()
    successor.waits(0.2)

    assert is_in_world(successor) == {OWN, 1, 2}
    comes(successor, claiming(known, 4, 4), 3)
    assert is_refused(successor, 3)


def test_without_a_majority_all_end() -> None:
    """When the time is over."""
    known = known_to(running_job(4), 1)
    successor = gathers(known, 1, ended=())
    comes(successor, claiming(known, 2, 2), 1)

    successor.waits(SECONDS)

    [end] = [message for message in successor.sent_to(1) if isinstance(message, Verdict)]
    assert end.reason == NodeLost(0, "n0")
    assert "2 of 4 nodes are left, not more than half" in end.no_restart
    assert successor.state.phase is JobPhase.OVER


def test_all_missing_ones_are_known_to_have_ended() -> None:
    """Then no majority is needed: of two nodes the other one goes on."""
    known = known_to(running_job(2), 1)
    successor = gathers(known, 1)

    successor.waits(SECONDS)

    assert is_in_world(successor) == {OWN}


def test_one_that_has_come_leaves_again() -> None:
    """It counts no more, and the others may still come."""
    known = known_to(running_job(4), 1)
    successor = gathers(known, 1, ended=())
    comes(successor, claiming(known, 2, 2), 1)
    successor.goes(1)
    comes(successor, claiming(known, 3, 3), 2)

    successor.waits(SECONDS)

    assert successor.state.phase is JobPhase.OVER


@pytest.mark.parametrize(
    "values", [{"attempt": 3}, {"coordinator": "another"}, {"node_rank": 1}], ids=str
)
def test_who_does_not_belong_to_the_attempt_is_refused(values: dict[str, object]) -> None:
    """It knows another attempt or coordinator, or its place is taken."""
    known = known_to(running_job(4), 1)
    successor = gathers(known, 1)

    comes(successor, claiming(known, 2, 2, **values), 1)

    assert is_refused(successor, 1)


def test_counts_go_on() -> None:
    """Restarts, losses and a suspension that is wanted; only successors know them."""
    job = running_job(3)
    job.happens(MessageReceived(2, RequestSuspension("SIGUSR1"), 0.0))
    known = known_to(job, 1)
    faults = HostFaults("n2", 1, "SIGBUS")
    progress = replace(known.progress, restarts=2, losses=3, faults=(faults,))

    successor = gathers(replace(known, progress=progress), 1)
    comes(successor, claiming(known, 2, 2), 1)

    assert known.progress.requested_by == "SIGUSR1 on n2"
    assert (successor.state.restarts, successor.state.losses) == (2, 4)
    assert successor.state.request is not None
    assert known_to(successor, 1).progress.faults == (faults,)


def test_the_next_attempt_waits_until_all_know_of_the_last_one() -> None:
    """A silent spare that knew only the one before the last could be in two majorities."""
    job = running_job(5, spares=2)
    job.unheard.add(4)

    def is_lost(number: int, *others: int) -> None:
        job.goes(number)
        for each in others:
            rank = job.state.ranks[each]
            job.is_done(each, [(fate(rank, ending=Killed(15), stopped_by_us=True), 0.0)])

    is_lost(1, 0, 2)
    assert job.state.attempt.number == 1
    is_lost(2, 0, 3)
    assert job.state.phase is JobPhase.RESTARTING

    job.happens(MessageReceived(4, SuccessionKnown(0), job.now))
    assert job.state.phase is JobPhase.RESTARTING
    job.unheard.clear()
    job.happens(MessageReceived(4, SuccessionKnown(1), job.now))
    assert (job.state.phase, job.state.attempt.number) == (JobPhase.RUNNING, 2)


def test_a_silent_member_is_not_waited_for_when_it_is_lost() -> None:
    """The next attempt begins without it."""
    job = running_job(4)
    job.unheard.add(3)
    job.goes(1)
    for each in (0, 2, 3):
        rank = job.state.ranks[each]
        job.is_done(each, [(fate(rank, ending=Killed(15), stopped_by_us=True), 0.0)])
    assert job.state.attempt.number == 1
    job.goes(2)
    job.is_done(0, [(fate(0, ending=Killed(15), stopped_by_us=True), 0.0)])
    job.is_done(3, [(fate(2, ending=Killed(15), stopped_by_us=True), 0.0)])
    assert job.state.phase is JobPhase.RESTARTING

    job.goes(3)

    assert (job.state.phase, job.state.attempt.number) == (JobPhase.RUNNING, 2)


def test_more_than_half_of_the_attempt_before_is_needed_too() -> None:
    """Some agents may know only that one: newcomers alone must not go on."""
    job = running_job(3)
    for number in (3, 4, 5):
        job.joins(number)
    job.fails(1, failed := fate(1, 7))
    job.state.terms = replace(job.state.terms, restarts=replace(TERMS.restarts, limit=1))
    job.is_done(0, [])
    job.is_done(1, [(failed, 0.0)])
    job.is_done(2, [])
    known = known_to(job, 1)
    assert (known.attempt, known.agents, known.agents_before) == (1, 6, 3)
    successor = gathers(known, 1, ended=())
    for number in (4, 5):
        comes(successor, claiming(known, number, None, since=1, knows_attempts=False), number)
    comes(successor, claiming(known, 3, 3, since=1), 3)

    successor.waits(SECONDS)

    assert successor.state.phase is JobPhase.OVER
    [end] = [message for message in successor.sent_to(3) if isinstance(message, Verdict)]
    assert "1 of 3 nodes are left" in end.no_restart


def test_one_that_was_left_out_of_an_elastic_world_comes() -> None:
    """It knows the attempts, and gets an order as the others."""
    known = replace(known_to(running_job(3), 1), agents=4)
    successor = gathers(known, 1)
    comes(successor, claiming(known, 3, None, knows_attempts=True), 1)

    comes(successor, claiming(known, 2, 2), 2)

    assert [m.world.node_rank for m in successor.sent_to(1) if isinstance(m, NextAttempt)] == [2]


def test_an_agent_that_leaves_the_coordinator_is_lost_but_has_not_ended() -> None:
    """It may follow another one: whether it works or waits."""
    job = running_job(4, spares=1)

    job.happens(MessageReceived(3, LeftCoordinator(), 1.0))
    job.happens(MessageReceived(1, LeftCoordinator(), 1.0))

    assert 1 in job.state.lost
    assert job.state.waiting == []
    assert job.state.departed == set()


def test_a_successor_has_a_claim() -> None:
    """One without has lost nothing."""
    known = known_to(running_job(2), 1)

    with pytest.raises(AssertionError, match="has lost a coordinator"):
        taken_over(TERMS, hello(1), known, NodeLost(0, "n0"), ended=(), at=0.0, until=1.0)
