"""Heartbeats: which silent nodes are lost, and which are not."""

import pytest

from tests.policy.door import NEVER, HeartbeatRhythm, HeartbeatTimer, SilenceWatch, heartbeat_rhythm

RHYTHM = HeartbeatRhythm(interval=1.0, timeout=5.0)


def lives(watch: SilenceWatch, number: int, first: int, last: int) -> None:
    """Let a member send a heartbeat each second, to a coordinator that checks as often."""
    for second in range(first, last + 1):
        watch.received(number, float(second))
        assert list(watch.lost(float(second))) == []


@pytest.mark.parametrize(
    ("nodes", "asked", "interval", "timeout"),
    [
        (2, 15.0, 1.0, 15.0),
        (500, 15.0, 1.0, 15.0),
        (2_000, 15.0, 2.0, 15.0),
        (5_000, 15.0, 5.0, 30.0),
        (20_000, 15.0, 20.0, 120.0),
        (2, 3.0, 0.5, 3.0),
        (1_000, 3.0, 1.0, 6.0),
    ],
)
def test_node_zero_receives_at_most_1000_heartbeats_a_second(
    nodes: int, asked: float, interval: float, timeout: float
) -> None:
    """Each second in small jobs; in large ones more rarely, and a missing one does not decide."""
    assert heartbeat_rhythm(nodes, asked) == HeartbeatRhythm(interval, timeout)
    assert nodes / interval <= 1000


def test_a_member_sends_heartbeats() -> None:
    """One in each interval, however often the timer is asked."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)

    signs = [tenth for tenth in range(35) if heartbeat.is_heartbeat_due(100.0 + tenth / 10)]

    assert signs == [10, 20, 30]


def test_a_silent_node_is_lost() -> None:
    """After the timeout, counted in intervals of listening, and not before."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    for second in range(1, 8):
        heartbeat.is_heartbeat_due(100.0 + second)
        assert not heartbeat.is_lost(100.0 + second)
        heartbeat.received(100.0 + second)
    lost = [second for second in range(8, 14) if heartbeat.is_lost(100.0 + second)]

    assert lost == [12, 13]


def test_a_paused_node_is_not_lost() -> None:
    """It gets no heartbeats, as it could not read them; its last message may arrive later."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    heartbeat.pause()
    heartbeat.received(100.1)
    heartbeat.leased(100.1, 103.0)
    waits = heartbeat.due, heartbeat.is_heartbeat_due(1000.0), heartbeat.is_lost(1000.0)
    heartbeat.resume(2000.0)

    assert waits == (NEVER, False, False)
    assert heartbeat.is_heartbeat_due(2000.0)
    assert [second for second in range(8) if heartbeat.is_lost(2000.0 + second)] == [5, 6, 7]


def test_the_timer_is_due_for_a_heartbeat_or_for_the_loss() -> None:
    """Whichever is first."""
    heartbeat = HeartbeatTimer(HeartbeatRhythm(1.0, 1.5), 100.0)
    first = heartbeat.due
    heartbeat.is_heartbeat_due(101.0)
    heartbeat.is_lost(101.0)

    assert (first, heartbeat.due) == (101.0, 101.5)


def test_a_member_that_was_stopped_does_not_count_its_own_silence() -> None:
    """A scheduler may stop all nodes: those continued first must wait for the others."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)

    lost = [heartbeat.is_lost(second) for second in (101.0, 4000.0, 4001.0, 4002.0, 4003.0)]

    assert lost == [False, False, False, True, True]


def test_node_zero_that_was_stopped_does_not_either() -> None:
    """No member is lost if it sends something now."""
    watch = SilenceWatch(RHYTHM, 100.0)
    watch.received(1, 100.0)

    at_once = list(watch.lost(4000.0))
    watch.received(1, 4001.0)

    assert at_once == list(watch.lost(4002.0)) == []


def test_the_silent_one_of_many_is_lost() -> None:
    """It is reported once."""
    watch = SilenceWatch(RHYTHM, 0.0)
    watch.received(2, 0.0)
    lives(watch, 1, 1, 4)
    watch.received(1, 5.0)

    assert list(watch.lost(5.0)) == [2]
    assert list(watch.lost(6.0)) == []
    lives(watch, 1, 7, 20)


def test_all_may_be_lost_at_once() -> None:
    """The switch has failed."""
    watch = SilenceWatch(RHYTHM, 0.0)
    for number in (1, 2, 3):
        watch.received(number, 0.0)
    for second in (1.0, 2.0, 3.0, 4.0):
        assert list(watch.lost(second)) == []

    assert list(watch.lost(5.0)) == [1, 2, 3]


def test_a_disconnected_node_is_not_lost_again() -> None:
    """The end of its connection was reported already."""
    watch = SilenceWatch(RHYTHM, 0.0)
    watch.received(1, 0.0)
    watch.forget(1)
    watch.forget(1)

    assert watch.due == NEVER
    assert list(watch.lost(100.0)) == []


def test_node_zero_checks_in_each_interval() -> None:
    """Otherwise it could not distinguish a silence from its own sleep."""
    watch = SilenceWatch(RHYTHM, 0.0)
    empty = watch.due
    watch.received(1, 0.5)

    assert (empty, watch.due) == (NEVER, 1.0)
    assert list(watch.lost(1.0)) == []
    assert watch.due == 2.0


def test_a_coordinator_is_lost_before_its_lease_ends() -> None:
    """Half an interval, so that the agent kills its workers, and not the fork server."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    heartbeat.leased(100.0, 103.0)

    lost = [tenth for tenth in range(40) if heartbeat.is_lost(100.0 + tenth / 10)]

    assert lost[0] == 25
    heartbeat.leased(104.0, 109.0)
    assert not heartbeat.is_lost(104.0)
    assert heartbeat.heard_at == 100.0
