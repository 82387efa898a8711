"""Leases: what a coordinator's rests on, what it gives its members, and when theirs end."""

import pytest

from tests.coordination.door import (
    NEVER,
    CoordinatorLease,
    HeartbeatAnswer,
    MemberLease,
)

FIVE = frozenset(range(5))


def lease(**confirmed: float) -> CoordinatorLease:
    """Return a lease of 15 s; ``n2=4.0``: agent 2 has confirmed what was sent at that time."""
    made = CoordinatorLease(15.0)
    for name, at in confirmed.items():
        made.confirmed(int(name.removeprefix("n")), at)
    return made


@pytest.mark.parametrize(
    ("confirmed", "ends"),
    [
        ({"n1": 9.0, "n2": 8.0, "n3": 7.0, "n4": 6.0}, 23.0),
        ({"n1": 9.0, "n2": 8.0}, 23.0),
        ({"n1": 9.0}, 15.0),
        ({}, 15.0),
    ],
)
def test_it_rests_on_what_more_than_half_have_confirmed(
    confirmed: dict[str, float], ends: float
) -> None:
    """The coordinator is one of them; of the other four, the second newest decides."""
    assert lease(**confirmed).ends([FIVE], ()) == ends


def test_who_has_ended_confirms_for_ever() -> None:
    """It follows nobody any more; without others there is no end."""
    assert lease(n1=9.0).ends([FIVE], {4}) == 24.0
    assert lease(n1=9.0).ends([FIVE], {3, 4}) == NEVER


def test_before_the_first_attempt_there_is_no_end() -> None:
    """Nobody knows a successor."""
    assert lease().ends([frozenset()], ()) == NEVER


def test_while_some_may_not_know_the_attempt_those_of_the_one_before_count_too() -> None:
    """Two are left of five: if the third follows a successor with the two that were lost."""
    two_of_three = lease(n1=9.0, n2=1.0)

    assert two_of_three.ends([frozenset({0, 1, 2})], ()) == 24.0
    assert two_of_three.ends([frozenset({0, 1, 2}), FIVE], ()) == 16.0


def test_a_late_heartbeat_takes_nothing_back() -> None:
    """It may have been sent before one that has come."""
    late = lease(n1=9.0)
    late.confirmed(1, 3.0)

    assert late.ends([frozenset({0, 1})], ()) == 24.0


def test_a_member_gets_what_is_left_of_the_coordinators() -> None:
    """Never more than the timeout; how long its workers may run is kept in mind until it is lost."""
    given = lease()

    assert given.given_until(1) == 0.0
    assert given.give(1, 10.0, NEVER) == 15.0
    assert given.given_until(1) == 25.0
    assert given.give(1, 12.0, 19.0) == 7.0
    assert given.given_until(1) == 25.0
    assert given.give(1, 20.0, 19.0) == 0.0
    given.forget(1)
    assert given.given_until(1) == 0.0


def test_a_members_lease_is_dated_from_its_question() -> None:
    """A frozen agent that continues reads old answers: they give it nothing."""
    member = MemberLease()
    member.answered(HeartbeatAnswer(at=500.0, to=10.0, lease=15.0), now=100.0)
    assert (member.ends, member.seen) == (25.0, 500.0)

    member.answered(HeartbeatAnswer(at=501.0, to=11.0, lease=3.0), now=101.0)
    assert (member.ends, member.seen) == (25.0, 501.0)


def test_a_question_of_the_future_was_asked_now() -> None:
    """Whatever a coordinator says."""
    member = MemberLease()
    member.answered(HeartbeatAnswer(at=1.0, to=1e9, lease=15.0), now=100.0)

    assert member.ends == 115.0


def test_a_paused_member_needs_an_answer() -> None:
    """Until then it follows no successor."""
    member = MemberLease()
    member.was_paused = True
    member.answered(HeartbeatAnswer(), now=0.0)

    assert not member.was_paused
