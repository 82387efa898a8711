"""MIN:MAX nodes: the job begins with all or, at the last call, with those that have joined."""

from typing import Any

from tests.rendezvous.door import (
    OWN,
    JobPhase,
    LastCall,
    Refusal,
    StopListening,
)
from tests.rendezvous.nodes import opened_job
from tests.rendezvous.replay import Replay


def job_of(fewest: int, most: int, **values: Any) -> Replay:
    """Return a job of ``fewest`` to ``most`` nodes whose last call takes 30 s."""
    return Replay(
        opened_job(most, last_call=LastCall(fewest, 30.0), keeps_joining_port=True, **values)
    )


def test_all_nodes_need_no_last_call() -> None:
    """As soon as MAX nodes have joined, it begins."""
    job = job_of(1, 3)

    job.joins(1)
    job.joins(2)

    assert {world.nodes for world in job.worlds.values()} == {3}
    assert job.now == 0.0


def test_enough_nodes_wait_for_the_others() -> None:
    """Exactly the time of the last call after enough nodes have joined."""
    job = job_of(2, 4)
    job.waits(100.0)
    job.joins(1)

    job.waits(29.9)
    before = dict(job.worlds)
    job.waits(0.2)

    assert before == {}
    assert {number: world.node_rank for number, world in job.worlds.items()} == {OWN: 0, 1: 1}
    assert {(world.nodes, world.size) for world in job.worlds.values()} == {(2, 2)}
    assert "starting with 2 of 4 nodes: n0, n1; without 2 nodes" in job.notices


def test_who_comes_during_the_last_call_is_in() -> None:
    """It does not make the last call longer, as in torchrun."""
    job = job_of(1, 4)
    job.waits(20.0)
    job.joins(1)
    job.waits(10.0)

    assert job.worlds.keys() == {OWN, 1}


def test_too_few_are_given_up() -> None:
    """When the time for all nodes is over, as without a last call."""
    job = job_of(3, 4, timeout=60.0)
    job.joins(1)

    job.waits(60.0)

    assert job.worlds == {}
    assert job.refusals[1].text == "2 of 4 nodes joined within 60 s: n0, n1; missing: 2 nodes"


def test_enough_are_never_given_up() -> None:
    """A last call that began late may end after that time."""
    job = job_of(2, 4, timeout=60.0)
    job.waits(59.0)
    job.joins(1)

    job.waits(30.0)

    assert job.worlds.keys() == {OWN, 1}


def test_who_leaves_again_is_missed() -> None:
    """With too few nodes the last call ends; the next one takes its whole time."""
    job = job_of(2, 4)
    job.joins(1)
    job.waits(20.0)
    job.goes(1)
    job.waits(20.0)
    job.joins(2)
    job.waits(20.0)
    before = dict(job.worlds)

    job.waits(10.0)

    assert before == {}
    assert job.worlds.keys() == {OWN, 2}


def test_a_caller_in_its_handshake_is_waited_for() -> None:
    """A caller without a hello may be one of the job's nodes."""
    job = job_of(1, 2)
    job.waits(29.9)
    job.calls()
    job.waits(0.15)
    before = dict(job.worlds)

    job.waits(0.2)

    assert before == {}
    assert job.worlds.keys() == {OWN}


def test_who_comes_later_is_told() -> None:
    """The endpoint stays open to refuse it; the job continues."""
    job = job_of(1, 3)
    job.joins(1)
    job.waits(30.0)

    job.joins(2)

    refused = job.refusals[2]
    assert refused.refusal is Refusal.GIVE_UP
    assert refused.text == "the job at n0:29500 has started with 2 nodes: n0, n1"
    assert refused.hint == (
        "No node can join once the job has started; --last-call-timeout makes the job wait longer."
    )
    assert job.state.phase is JobPhase.RUNNING
    assert not any(isinstance(reply, StopListening) for reply in job.replies)


def test_people_hear_how_long_it_takes() -> None:
    """First the missing nodes, then when the job begins without them."""
    job = job_of(2, 3)
    job.waits(6.0)
    job.joins(1)
    job.waits(29.0)

    assert job.notices[0].startswith("1 of 3 nodes have joined: n0; waiting for 2 nodes (")
    assert any(
        text.startswith("2 of 3 nodes have joined: n0, n1; waiting ")
        and text.endswith(" s more for 1 node (the minimum is 2)")
        for text in job.notices
    )


def test_ranks_that_were_said_move_up() -> None:
    """Rank 1 has not joined: rank 2 takes its place, so that there is no gap."""
    job = job_of(2, 3)
    job.joins(1, rank=2)
    job.waits(30.0)

    assert {number: world.node_rank for number, world in job.worlds.items()} == {OWN: 0, 1: 1}
    assert job.worlds[1].first_rank == 1
