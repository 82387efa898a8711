"""To whom an agent turns that has lost its coordinator."""

from tests.coordination.door import (
    Call,
    Gather,
    GiveUp,
    Search,
    Successor,
    answered,
    has_ended,
    step,
    time_passed,
)
from tests.coordination.door import (
    search_due as due,
)

ONE = Successor("agent 1", 1, "10.0.0.1", 1001)
TWO = Successor("agent 2", 2, "10.0.0.2", 1002)
OTHER = Search("agent 3", (ONE, TWO), began=100.0, seconds=15.0)
"""The search of an agent that is no successor."""


def test_successors_have_their_turns_in_order() -> None:
    """Each for an equal part of the time, if it does not answer; then the agent ends."""
    assert step(OTHER) == Call(ONE)
    assert due(OTHER) == 105.0
    assert time_passed(OTHER, 104.9) == OTHER
    second = time_passed(OTHER, 105.0)
    assert step(second) == Call(TWO)
    assert due(second) == 110.0
    assert step(time_passed(second, 110.0)) == GiveUp()
    assert step(time_passed(OTHER, 200.0)) == GiveUp()


def test_a_successor_that_has_ended_is_passed_over_at_once() -> None:
    """Its kernel has reported it."""
    second = has_ended(OTHER)

    assert step(second) == Call(TWO)
    assert second.ended == {1}


def test_a_successor_gathers_when_its_turn_comes() -> None:
    """The first one at once, the second one if the first does not answer."""
    first = Search("agent 1", (ONE, TWO), 100.0, 15.0)
    second = Search("agent 2", (ONE, TWO), 100.0, 15.0)

    assert step(first) == Gather()
    assert time_passed(first, 114.0) == first
    assert step(time_passed(first, 115.0)) == GiveUp()
    assert step(second) == Call(ONE)
    assert step(time_passed(second, 105.0)) == Gather()


def test_an_agent_stays_with_the_successor_that_got_its_claim() -> None:
    """For the rest of its time; only if that one has ended, another one may count it."""
    claimed = answered(OTHER)

    assert time_passed(claimed, 114.0) == claimed
    assert step(time_passed(claimed, 115.0)) == GiveUp()
    assert step(has_ended(claimed)) == Call(TWO)
    assert not has_ended(claimed).claimed
