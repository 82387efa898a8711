"""The cost of an event does not grow with the number of members."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from clusterrun.policy import answers, job_events, messages, outcome, queries
from clusterrun.policy.coordinator import Coordinator, Running
from clusterrun.policy.stacks import StackGroup
from msgspec.msgpack import encode

from tests.network.nodes import hello, opened_job, result

MEMBERS = 20_000
WORKERS = 8


@contextmanager
def limit(microseconds: float) -> Iterator[None]:
    """Limit the processor time per member: ten times the measured value, not a hundred times."""
    began = time.process_time()
    yield
    spent = 1e6 * (time.process_time() - began) / MEMBERS
    assert spent < microseconds, f"{spent:.0f} µs for each member"


def joined(*, have_ranks: bool) -> Coordinator:
    """Return a large job that all nodes have joined."""
    hellos = [
        hello(number, MEMBERS, rank=number if have_ranks else None, workers=WORKERS)
        for number in range(MEMBERS)
    ]
    own = {"rank": 0} if have_ranks else {}
    job = opened_job(MEMBERS, workers=WORKERS, max_restarts=1, **own)
    with limit(300):
        for number, each in enumerate(hellos[1:], start=1):
            job.handle(job_events.CallerConnected(1.0))
            job.handle(job_events.HelloReceived(number, "10.0.0.1", each, 1.0))
    assert isinstance(job.state, Running)
    return job


def sends(job: Coordinator, number: int, message: messages.AgentMessage) -> list[job_events.Action]:
    return job.handle(job_events.MessageReceived(number, message, 2.0))


def stopped_result(rank: int) -> messages.DatedResult:
    stopped = result(rank, exit_status=outcome.Killed(15), stopped_by_us=True)
    return messages.DatedResult(stopped, 0.0)


@pytest.mark.parametrize("have_ranks", [True, pytest.param(False, marks=pytest.mark.long)])
def test_nodes_join_fail_and_restart(*, have_ranks: bool) -> None:
    """With node ranks, or in the order of joining."""
    job = joined(have_ranks=have_ranks)
    stopped = [
        tuple(stopped_result(each.first_rank + rank) for rank in range(WORKERS))
        for each in job.members.participants
    ]

    with limit(1000):
        sends(job, 0, messages.FirstFailure(0, result(0, 1), 0.0))
        sends(job, 0, messages.Done(0, (messages.DatedResult(result(0, 1), 0.0),), None))
        for number, results in enumerate(stopped[1:], start=1):
            last = sends(job, number, messages.Done(0, results, None))
    with limit(300):
        restart = job.handle(job_events.PortReady(29501, 0.0))

    assert last == [job_events.PreparePort()]
    assert len(restart) == MEMBERS


def test_members_rejoin_while_others_join() -> None:
    """As where a scheduler starts its tasks again."""
    nodes = 2 * MEMBERS
    job = opened_job(nodes)
    hellos = [hello(number, nodes) for number in range(nodes)]

    with limit(300):
        for number in range(1, MEMBERS):
            job.handle(job_events.HelloReceived(number, "10.0.0.1", hellos[number], 1.0))
        for number in range(1, MEMBERS):
            job.handle(job_events.MemberDisconnected(number, "", 2.0))
            job.handle(job_events.HelloReceived(nodes + number, "10.0.0.1", hellos[number], 3.0))

    assert len(job.members.by_connection) == MEMBERS


def test_all_members_are_suspended() -> None:
    """A scheduler suspends and continues all nodes at once."""
    job = joined(have_ranks=True)

    with limit(300):
        for paused in (True, False):
            for number in range(MEMBERS):
                sends(job, number, messages.Paused(paused))

    assert not any(each.paused for each in job.members.participants)


def test_stacks_of_all_members_are_collected() -> None:
    """No rank runs any more, and each member answers."""
    job = joined(have_ranks=True)

    with limit(300):
        for number in range(MEMBERS):
            asked = sends(job, number, messages.Idle(0, 30.0))
        for number, first in enumerate([each.first_rank for each in job.members.participants]):
            group = StackGroup(tuple(range(first, first + WORKERS)), "in train")
            body = encode(answers.NodeStacks((group,)))
            answer = queries.Answer(1, number, "n", body)
            shown = sends(job, number, answer)

    query = queries.Query(1, queries.Topic.STACKS, 4.0)
    assert asked[1:] == [job_events.Send(tuple(range(MEMBERS)), query)]
    everyone = f"  ranks 0-{MEMBERS * WORKERS - 1}:\n    in train"
    assert shown[0] == job_events.Send((0,), messages.PrintStacks(everyone))


def test_no_member_sends_its_stacks() -> None:
    """A message names as many as it has room for, and the screen fewer."""
    job = joined(have_ranks=True)
    query = queries.Query(1, queries.Topic.RANKS, 1.2)
    sends(job, 0, messages.RequestStacks())
    sends(job, 1, query)

    [ended] = job.handle(job_events.TimePassed(job.due))
    shown, *_ = job.handle(job_events.TimePassed(job.due))

    assert isinstance(ended, job_events.Send)
    assert isinstance(ended.message, queries.EndOfAnswers)
    # One of them is the one that asks.
    assert (len(ended.message.missing), ended.message.more) == (1000, MEMBERS - 1001)
    assert isinstance(shown, job_events.Send)
    assert isinstance(shown.message, messages.PrintStacks)
    assert shown.message.text.splitlines()[-1] == f"  {MEMBERS - 20} more nodes do not answer"


def test_many_nodes_are_lost_at_once() -> None:
    """2,000 nodes, 20 of them spares, lose 20: all know the new world within half a second."""
    spares, nodes = 20, 2000
    job = opened_job(nodes, workers=WORKERS, spares=spares)
    for number in range(1, nodes):
        said = hello(number, nodes, workers=WORKERS)
        job.handle(job_events.CallerConnected(1.0))
        job.handle(job_events.HelloReceived(number, "10.0.0.1", said, 1.0))
    lost = range(1, nodes - spares, 99)[:spares]
    began = time.process_time()

    for number in lost:
        job.handle(job_events.MemberDisconnected(number, "", 2.0))
    for each in [each for each in job.members.participants if each.is_present]:
        number = each.connection or 0
        last = sends(job, number, messages.Done(0, (stopped_result(each.first_rank),), None))
    orders = job.handle(job_events.PortReady(29501, 3.0))

    assert time.process_time() - began < 5
    assert last == [job_events.PreparePort()]
    # And one that disconnects the lost ones.
    assert len(orders) == 1 + nodes - spares == 1 + len(job.members.participants)
    assert job.members.waiting == []
