"""Large jobs: no event costs more because there are more members."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.coordination.door import (
    AgedFate,
    AllStacks,
    CallerConnected,
    Done,
    FirstFailure,
    HelloReceived,
    Idle,
    JobPhase,
    JobState,
    Killed,
    MemberGone,
    MessageReceived,
    Paused,
    PortReady,
    PreparePort,
    ReformRules,
    RestartRules,
    Send,
    SendStacks,
    StackGroup,
    Stacks,
    decide,
)
from tests.rendezvous.nodes import fate, hello, opened_job

MEMBERS = 20_000
WORKERS = 8


@contextmanager
def limit(microseconds: float) -> Iterator[None]:
    """Limit the processor time per member: ten times the measured value, not a hundred times."""
    began = time.process_time()
    yield
    spent = 1e6 * (time.process_time() - began) / MEMBERS
    assert spent < microseconds, f"{spent:.0f} µs for each member"


def joined(*, have_ranks: bool) -> JobState:
    """Return the state of a large job that all nodes have joined."""
    hellos = [
        hello(number, MEMBERS, rank=number if have_ranks else None, workers=WORKERS)
        for number in range(MEMBERS)
    ]
    own = {"rank": 0} if have_ranks else {}
    state = opened_job(MEMBERS, workers=WORKERS, restarts=RestartRules(1), **own)
    with limit(100):
        for number, each in enumerate(hellos[1:], start=1):
            decide(state, CallerConnected(1.0))
            decide(state, HelloReceived(number, "10.0.0.1", each, 1.0))
    assert state.phase is JobPhase.RUNNING
    return state


@pytest.mark.parametrize("have_ranks", [True, False])
def test_nodes_join_fail_and_restart(*, have_ranks: bool) -> None:
    """With node ranks, or in the order of joining."""
    state = joined(have_ranks=have_ranks)
    stopped = [
        tuple(
            AgedFate(fate(first + rank, ending=Killed(15), stopped_by_us=True), 0.0)
            for rank in range(WORKERS)
        )
        for first in state.first_ranks.values()
    ]

    with limit(300):
        decide(state, MessageReceived(0, FirstFailure(0, fate(0, 1), 0.0), 2.0))
        decide(state, MessageReceived(0, Done(0, (AgedFate(fate(0, 1), 0.0),), None), 2.0))
        for number, fates in enumerate(stopped[1:], start=1):
            last = decide(state, MessageReceived(number, Done(0, fates, None), 3.0))
    with limit(100):
        restart = decide(state, PortReady(29501, 0.0))

    assert last == (PreparePort(),)
    assert len(restart) == MEMBERS


def test_members_leave_and_join_again_while_others_join() -> None:
    """As where a scheduler starts its tasks again."""
    nodes = 2 * MEMBERS
    state = opened_job(nodes)
    hellos = [hello(number, nodes) for number in range(nodes)]

    with limit(100):
        for number in range(1, MEMBERS):
            decide(state, HelloReceived(number, "10.0.0.1", hellos[number], 1.0))
        for number in range(1, MEMBERS):
            decide(state, MemberGone(number, "", 2.0))
            decide(state, HelloReceived(nodes + number, "10.0.0.1", hellos[number], 3.0))

    assert len(state.members) == MEMBERS


def test_all_members_are_suspended() -> None:
    """A scheduler suspends and continues all nodes at once."""
    state = joined(have_ranks=True)

    with limit(60):
        for paused in (True, False):
            for number in range(MEMBERS):
                decide(state, MessageReceived(number, Paused(paused), 2.0))

    assert state.paused == set()


def test_stacks_of_all_members_are_collected() -> None:
    """No rank runs any more, and each member answers."""
    state = joined(have_ranks=True)

    with limit(100):
        for number in range(MEMBERS):
            asked = decide(state, MessageReceived(number, Idle(0, 30.0), 2.0))
        for number, first in enumerate(state.first_ranks.values()):
            group = StackGroup(tuple(range(first, first + WORKERS)), "in train")
            shown = decide(state, MessageReceived(number, Stacks(0, 1, (group,)), 3.0))

    assert asked[1:] == (Send(tuple(range(MEMBERS)), SendStacks(0, 1)),)
    everyone = StackGroup(tuple(range(MEMBERS * WORKERS)), "in train")
    assert shown == (Send((0,), AllStacks((everyone,), ())),)


def test_many_nodes_are_lost_at_once() -> None:
    """2,000 nodes of which 20 are spares lose 20: the new world is known to all in half a second."""
    spares, nodes = 20, 2000
    state = opened_job(nodes, workers=WORKERS, reforming=ReformRules(spares))
    for number in range(1, nodes):
        said = hello(number, nodes, workers=WORKERS)
        decide(state, CallerConnected(1.0))
        decide(state, HelloReceived(number, "10.0.0.1", said, 1.0))
    lost = range(1, nodes - spares, 99)[:spares]
    began = time.process_time()

    for number in lost:
        decide(state, MemberGone(number, "", 2.0))
    for number in [each for each in state.ranks if each not in lost]:
        rank = state.first_ranks[number]
        stopped = AgedFate(fate(rank, ending=Killed(15), stopped_by_us=True), 0.0)
        last = decide(state, MessageReceived(number, Done(0, (stopped,), None), 3.0))
    orders = decide(state, PortReady(29501, 3.0))

    assert time.process_time() - began < 5
    assert last == (PreparePort(),)
    assert len(orders) == nodes - spares == len(state.ranks)
    assert (state.losses, state.waiting) == (spares, [])
