"""Leases: what a coordinator's rests on, what it gives its members, and when theirs end."""

import pytest

from tests.network.nodes import hello
from tests.policy.door import NEVER, Majority, MemberLease, Members, Node, messages

TIMEOUT = 15.0


def attempt(size: int, **confirmed: float) -> Majority:
    """Return what is known of an attempt; ``n2=4.0``: agent 2 has confirmed what was sent then."""
    members = Members(Node(0, hello(0)))
    for number in range(1, size):
        members.add(Node(number, hello(number)))
    made = Majority(members, TIMEOUT)
    for name, at in confirmed.items():
        made.confirmed(int(name.removeprefix("n")), at)
    made.begin_attempt()
    return made


def ends(majority: Majority, *numbers: int) -> None:
    """Let agents be known to have ended."""
    for node in majority.of_attempt.agents:
        if node.connection in numbers:
            node.here, node.has_ended = False, True


@pytest.mark.parametrize(
    ("confirmed", "end"),
    [
        ({"n1": 9.0, "n2": 8.0, "n3": 7.0, "n4": 6.0}, 23.0),
        ({"n1": 9.0, "n2": 8.0}, 23.0),
        ({"n1": 9.0}, 15.0),
        ({}, 15.0),
    ],
)
def test_it_rests_on_what_more_than_half_have_confirmed(
    confirmed: dict[str, float], end: float
) -> None:
    """The coordinator is one of them; of the other four, the second newest decides."""
    assert attempt(5, **confirmed).lease_ends == end


def test_who_has_ended_confirms_for_ever() -> None:
    """It follows nobody any more; without others there is no end."""
    one, two = attempt(5, n1=9.0), attempt(5, n1=9.0)
    ends(one, 4)
    ends(two, 3, 4)

    assert (one.lease_ends, two.lease_ends) == (24.0, NEVER)


def test_who_is_paused_confirms_until_it_continues() -> None:
    """It follows a successor only once the coordinator has answered it again."""
    majority = attempt(2)
    node = majority.of_attempt.agents[1]

    for paused, end in ((False, 15.0), (True, NEVER), (False, 15.0)):
        node.paused = paused
        assert majority.lease_ends == end


def test_before_the_first_attempt_there_is_no_end() -> None:
    """Nobody knows a successor."""
    assert Majority(Members(Node(0, hello(0))), TIMEOUT).lease_ends == NEVER


def test_while_some_may_not_know_the_attempt_those_of_the_one_before_count_too() -> None:
    """Two are left of five: if the third follows a successor with the two that were lost."""
    majority = attempt(5, n1=9.0, n2=1.0)
    others = majority.of_attempt.agents[3:]
    majority.keep_last_attempt()
    for each in others:
        each.here = False
        majority.forget(each)
    majority.of_attempt.agents = majority.of_attempt.agents[:3]
    assert majority.lease_ends == 24.0

    majority.unaware.update(majority.of_attempt.agents[1:])

    assert majority.lease_ends == 16.0


def test_a_late_heartbeat_takes_nothing_back() -> None:
    """It may have been sent before one that has come."""
    late = attempt(2, n1=9.0)
    late.confirmed(1, 3.0)

    assert late.lease_ends == 24.0


def test_a_member_gets_what_is_left_of_the_coordinators() -> None:
    """Never more than the timeout; how long its workers may run is kept in mind until it is lost."""
    majority = attempt(2)
    node = majority.of_attempt.agents[1]
    given = [majority.give(1, now, end) for now, end in ((10.0, NEVER), (12.0, 19.0), (20.0, 19.0))]
    node.here = False

    majority.lost(node)

    assert (given, majority.lost_leases_end) == ([15.0, 7.0, 0.0], 25.0)


def test_a_member_that_has_ended_has_no_lease() -> None:
    """Its fork server has ended with it; nor has one that is forgotten."""
    majority = attempt(3)
    first, second = majority.of_attempt.agents[1:]
    majority.give(1, 10.0, NEVER)
    majority.give(2, 10.0, NEVER)
    ends(majority, 1)
    majority.forget(second)

    majority.lost(first)
    majority.lost(second)

    assert majority.lost_leases_end == 0.0


def test_a_members_lease_is_dated_from_its_question() -> None:
    """A frozen agent that continues reads old answers: they give it nothing."""
    member = MemberLease()
    member.answered(messages.HeartbeatAnswer(at=500.0, to=10.0, lease=15.0), now=100.0)
    assert (member.ends, member.seen) == (25.0, 500.0)

    member.answered(messages.HeartbeatAnswer(at=501.0, to=11.0, lease=3.0), now=101.0)
    assert (member.ends, member.seen) == (25.0, 501.0)


def test_a_question_of_the_future_was_asked_now() -> None:
    """Whatever a coordinator says."""
    member = MemberLease()
    member.answered(messages.HeartbeatAnswer(at=1.0, to=1e9, lease=15.0), now=100.0)

    assert member.ends == 115.0


def test_a_paused_member_needs_an_answer() -> None:
    """Until then it follows no successor."""
    member = MemberLease()
    member.was_paused = True
    member.answered(messages.HeartbeatAnswer(), now=0.0)

    assert not member.was_paused
