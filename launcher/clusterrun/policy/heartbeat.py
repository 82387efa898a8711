"""Heartbeats: when agents send them, and how long a node may be silent before it is lost.

The kernel reports at once that an agent has ended. It does not report an agent that is frozen, a host
that has lost power, or a network that is cut off; only their silence shows that.
"""

from collections import deque
from collections.abc import Iterable

from clusterrun.loop import NEVER
from clusterrun.policy.settings import (
    MEMBER_SILENCE_INTERVALS,
    NODE_ZERO_SILENCE_INTERVALS,
    HeartbeatRhythm,
)

MAX_EXCHANGES = 16
"""The fastest of this many heartbeats gives the clock offset."""


class ListeningClock:
    """A clock that runs only while this process can receive.

    A process that was stopped, or got no CPU time, must not count that time as silence of others: a
    scheduler may stop all nodes of a job and continue them hours later.
    """

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        """Start the clock; ``at`` must then be called at least once per interval."""
        self._longest_gap = 2 * rhythm.interval
        self._last = now
        self._listened = 0.0

    def at(self, now: float) -> float:
        """Return the seconds spent listening until ``now``."""
        self._listened += min(now - self._last, self._longest_gap)
        self._last = now
        return self._listened

    def when(self, listened: float) -> float:
        """Return when this many seconds will have been spent listening if the process is not stopped."""
        return self._last + listened - self._listened


class HeartbeatTimer:
    """When a member sends heartbeats, and whether node 0 has been silent for too long."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        """Start as if node 0 had just sent a message."""
        self._interval = rhythm.interval
        self._timeout = rhythm.after(NODE_ZERO_SILENCE_INTERVALS)
        self._clock = ListeningClock(rhythm, now)
        self._silent_at = self._timeout
        self._next_heartbeat = now + rhythm.interval
        self._paused = False

    @property
    def due(self) -> float:
        """When a heartbeat is due, or node 0 is lost."""
        return min(self._next_heartbeat, self._clock.when(self._silent_at))

    def received(self, now: float) -> None:
        """Note that node 0 has sent a message."""
        if not self._paused:
            self._silent_at = self._clock.at(now) + self._timeout

    def pause(self) -> None:
        """Send and expect nothing while node 0 is paused.

        Heartbeats that it does not read would fill its buffers, and the kernel would close the connection.
        """
        self._paused = True
        self._silent_at = self._next_heartbeat = NEVER

    def resume(self, now: float) -> None:
        """Resume: node 0 has just reported that it continues."""
        self._paused = False
        self._next_heartbeat = now
        self.received(now)

    def is_heartbeat_due(self, now: float) -> bool:
        """Return whether to send a heartbeat now; once it is, the next is due an interval later."""
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + self._interval
        return True

    def is_silent(self, now: float) -> bool:
        """Return whether node 0 has been silent for too long."""
        return self._clock.at(now) >= self._silent_at


class SilenceWatch:
    """Which members, by connection number, have been silent for too long."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        self._interval = rhythm.interval
        self._timeout = rhythm.after(MEMBER_SILENCE_INTERVALS)
        self._clock = ListeningClock(rhythm, now)
        self._checked_at = now
        self._silent_at: dict[int, float] = {}
        """In the order of the last message: the first member is the next to be lost."""

    @property
    def due(self) -> float:
        """When to call ``lost`` if nothing is received until then."""
        if not self._silent_at:
            return NEVER
        first = self._clock.when(next(iter(self._silent_at.values())))
        return min(first, self._checked_at + self._interval)

    def received(self, number: int, now: float) -> None:
        """Note that a member has sent a message; the first one starts the watch."""
        self._silent_at.pop(number, None)
        self._silent_at[number] = self._clock.at(now) + self._timeout

    def forget(self, number: int) -> None:
        """Stop watching a member."""
        self._silent_at.pop(number, None)

    def lost(self, now: float) -> Iterable[int]:
        """Return the members that have been silent for too long, and stop watching them."""
        self._checked_at = now
        listened = self._clock.at(now)
        silent = []
        for number, silent_at in self._silent_at.items():
            if listened < silent_at:
                break
            silent.append(number)
        for number in silent:
            del self._silent_at[number]
        return silent


class ClockOffset:
    """The offset between this host's clock and node 0's, measured by heartbeats.

    The fastest of the last exchanges counts (as in NTP, RFC 5905, section 10). The remaining error is
    half the difference between the delays of the two directions.
    """

    def __init__(self) -> None:
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=MAX_EXCHANGES)
        """The duration of each, and the offset that it shows."""

    def answered(self, sent: float, received: float, answered_at: float) -> None:
        """Add an exchange: ``sent`` and ``received`` by this host's clock, ``answered_at`` by node 0's."""
        offset = answered_at - (sent + received) / 2
        self._exchanges.append((received - sent, offset))

    def to_node_zero(self, at: float) -> float | None:
        """Convert a time to node 0's clock; None: no heartbeat has been answered yet."""
        if not self._exchanges:
            return None
        return at + min(self._exchanges)[1]
