"""Heartbeats: which silent nodes are lost, and which are not."""

import pytest
from clusterrun.loop import NEVER
from clusterrun.policy.heartbeat import ClockOffset, HeartbeatTimer, SilenceWatch
from clusterrun.policy.settings import HeartbeatRhythm, heartbeat_rhythm

RHYTHM = HeartbeatRhythm(interval=1.0, timeout=6.0)


def lives(watch: SilenceWatch, number: int, first: int, last: int) -> None:
    """Let a member send a heartbeat each second, to a coordinator that checks as often."""
    for second in range(first, last + 1):
        watch.received(number, float(second))
        assert list(watch.lost(float(second))) == []


@pytest.mark.parametrize(
    ("nodes", "asked", "interval", "timeout"),
    [
        (2, 15.0, 1.0, 15.0),
        (4_000, 15.0, 1.0, 15.0),
        (10_000, 15.0, 2.5, 15.0),
        (20_000, 15.0, 5.0, 30.0),
        (2, 3.0, 0.5, 3.0),
        (4_000, 3.0, 1.0, 6.0),
    ],
)
def test_node_zero_receives_at_most_4000_heartbeats_a_second(
    nodes: int, asked: float, interval: float, timeout: float
) -> None:
    """One per second in small jobs; fewer in large ones, with six in a timeout."""
    assert heartbeat_rhythm(nodes, asked) == HeartbeatRhythm(interval, timeout)
    assert nodes / interval <= 4000


def test_member_sends_heartbeats() -> None:
    """One per interval, however often the timer is called."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)

    sent = [tenth for tenth in range(35) if heartbeat.is_heartbeat_due(100.0 + tenth / 10)]

    assert sent == [10, 20, 30]


def test_node_zero_is_lost_two_intervals_after_the_timeout() -> None:
    """Counted in intervals of listening since its last message."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    for second in range(1, 8):
        assert not heartbeat.is_silent(100.0 + second)
        heartbeat.received(100.0 + second)
    silent = [second for second in range(8, 18) if heartbeat.is_silent(100.0 + second)]

    assert silent == [15, 16, 17]


def test_paused_node_zero_is_not_lost() -> None:
    """It gets no heartbeats, which it could not read; its last message may arrive later."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    heartbeat.pause()
    heartbeat.received(100.1)
    waits = heartbeat.due, heartbeat.is_heartbeat_due(1000.0), heartbeat.is_silent(1000.0)
    heartbeat.resume(2000.0)

    assert waits == (NEVER, False, False)
    assert heartbeat.is_heartbeat_due(2000.0)
    assert [it for it in range(11) if heartbeat.is_silent(2000.0 + it)] == [8, 9, 10]


def test_timer_is_due_for_heartbeat_or_loss() -> None:
    """Whichever is first."""
    heartbeat = HeartbeatTimer(HeartbeatRhythm(1.0, -0.5), 100.0)
    first = heartbeat.due
    heartbeat.is_heartbeat_due(101.0)
    heartbeat.is_silent(101.0)

    assert (first, heartbeat.due) == (101.0, 101.5)


def test_stopped_member_does_not_count_its_own_silence() -> None:
    """A scheduler may stop all nodes: those continued first must wait for the others."""
    heartbeat = HeartbeatTimer(RHYTHM, 100.0)
    times = (101.0, 4000.0, 4001.0, 4002.0, 4003.0, 4004.0, 4005.0)

    assert [it for it in times if heartbeat.is_silent(it)] == [4005.0]


def test_stopped_node_zero_does_not_count_its_own_silence() -> None:
    """No member is lost if it sends something now."""
    watch = SilenceWatch(RHYTHM, 100.0)
    watch.received(1, 100.0)

    at_once = list(watch.lost(4000.0))
    watch.received(1, 4001.0)

    assert at_once == list(watch.lost(4002.0)) == []


def test_silent_member_of_many_is_lost() -> None:
    """Three intervals after the timeout, and once."""
    watch = SilenceWatch(RHYTHM, 0.0)
    watch.received(2, 0.0)
    lives(watch, 1, 1, 8)
    watch.received(1, 9.0)

    assert list(watch.lost(9.0)) == [2]
    assert list(watch.lost(10.0)) == []
    lives(watch, 1, 11, 20)


def test_all_members_are_lost_at_once() -> None:
    """The switch has failed."""
    watch = SilenceWatch(RHYTHM, 0.0)
    for number in (1, 2, 3):
        watch.received(number, 0.0)
    for second in range(1, 9):
        assert list(watch.lost(float(second))) == []

    assert list(watch.lost(9.0)) == [1, 2, 3]


def test_disconnected_member_is_not_lost_again() -> None:
    """The end of its connection was already reported."""
    watch = SilenceWatch(RHYTHM, 0.0)
    watch.received(1, 0.0)
    watch.forget(1)
    watch.forget(1)

    assert watch.due == NEVER
    assert list(watch.lost(100.0)) == []


def test_node_zero_checks_every_interval() -> None:
    """Otherwise it could not distinguish silence from being stopped itself."""
    watch = SilenceWatch(RHYTHM, 0.0)
    empty = watch.due
    watch.received(1, 0.5)

    assert (empty, watch.due) == (NEVER, 1.0)
    assert list(watch.lost(1.0)) == []
    assert watch.due == 2.0


@pytest.mark.parametrize(
    ("exchanges", "offset"),
    [
        ([], None),
        # Sent, received, and between them answered: node 0's clock is 900 s ahead.
        ([(100.0, 100.2, 1000.1)], 900.0),
        # What comes back slowly makes half of that an error; the quickest counts.
        ([(100.0, 100.6, 1000.1), (101.0, 101.2, 1001.1), (102.0, 103.0, 1002.1)], 900.0),
        ([(100.0, 100.6, 1000.1)], 899.8),
        # Of the last 16: clocks drift.
        ([(100.0, 100.1, 1000.05), *[(200.0, 200.2, 1100.2)] * 16], 900.1),
        ([(100.0, 100.1, 1000.05), *[(200.0, 200.2, 1100.2)] * 15], 900.0),
    ],
)
def test_clock_offset(exchanges: list[tuple[float, float, float]], offset: float | None) -> None:
    """From heartbeats and their answers."""
    clock = ClockOffset()
    for sent, received, answered_at in exchanges:
        clock.answered(sent, received, answered_at)

    at = clock.to_node_zero(50.0)

    assert at == (None if offset is None else pytest.approx(50.0 + offset))
