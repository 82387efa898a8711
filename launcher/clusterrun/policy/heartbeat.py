"""Heartbeats: when agents send them, and after which silence a node is lost.

The kernel reports at once that an agent has ended. It reports nothing of an agent that is frozen, of a
host without power, or of a cable that was cut: only their silence shows it.
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
"""Heartbeats and their answers of which the quickest tells the difference of two clocks."""


class ListeningClock:
    """A clock that runs only while this process could listen.

    A process that was stopped or got no processor may not count that time as silence of others: a
    scheduler may stop all nodes of a job, and continue them hours later.
    """

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        """Begin to listen, at least once in each interval."""
        self._longest_gap = 2 * rhythm.interval
        self._last = now
        self._listened = 0.0

    def at(self, now: float) -> float:
        """Return the seconds spent listening until ``now``."""
        self._listened += min(now - self._last, self._longest_gap)
        self._last = now
        return self._listened

    def moment(self, listened: float) -> float:
        """Return when this many seconds will have been spent listening, if all goes well."""
        return self._last + listened - self._listened


class HeartbeatTimer:
    """A member's side: when to send a heartbeat, and whether node 0 is silent for too long."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        """Begin as if node 0 had just sent something."""
        self._interval = rhythm.interval
        self._patience = rhythm.after(NODE_ZERO_SILENCE_INTERVALS)
        self._clock = ListeningClock(rhythm, now)
        self._silent_at = self._patience
        self._next_heartbeat = now + rhythm.interval
        self._paused = False

    @property
    def due(self) -> float:
        """When a heartbeat is due, or node 0 is lost."""
        return min(self._next_heartbeat, self._clock.moment(self._silent_at))

    def received(self, now: float) -> None:
        """Take note that node 0 has sent something."""
        if not self._paused:
            self._silent_at = self._clock.at(now) + self._patience

    def pause(self) -> None:
        """Send and expect nothing: node 0 is about to be paused.

        It would read nothing: heartbeats would fill its buffers, and the kernel take it for dead.
        """
        self._paused = True
        self._silent_at = self._next_heartbeat = NEVER

    def resume(self, now: float) -> None:
        """Go on: node 0 has just sent that it continues."""
        self._paused = False
        self._next_heartbeat = now
        self.received(now)

    def is_heartbeat_due(self, now: float) -> bool:
        """Return, once for each heartbeat, whether to send it now."""
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + self._interval
        return True

    def is_silent(self, now: float) -> bool:
        """Return whether node 0 has been silent for too long."""
        return self._clock.at(now) >= self._silent_at


class SilenceWatch:
    """The coordinator's side: which members, by number, have been silent for too long."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        self._interval = rhythm.interval
        self._patience = rhythm.after(MEMBER_SILENCE_INTERVALS)
        self._clock = ListeningClock(rhythm, now)
        self._looked = now
        # In the order of the last message, so that the first is the next to be lost.
        self._silent_at: dict[int, float] = {}

    @property
    def due(self) -> float:
        """When to call ``lost``, even if nothing is received."""
        if not self._silent_at:
            return NEVER
        first = self._clock.moment(next(iter(self._silent_at.values())))
        return min(first, self._looked + self._interval)

    def received(self, number: int, now: float) -> None:
        """Take note that a member sent something; begin to watch it if this is its first message."""
        self._silent_at.pop(number, None)
        self._silent_at[number] = self._clock.at(now) + self._patience

    def forget(self, number: int) -> None:
        """Watch a member no longer."""
        self._silent_at.pop(number, None)

    def lost(self, now: float) -> Iterable[int]:
        """Return, and forget, the members that have been silent for too long."""
        self._looked = now
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
    """The difference between the clock of this host and node 0's, as answers to heartbeats show it.

    An exchange that took long tells little: of the last ones the quickest counts (as in NTP, RFC 5905,
    section 10). What remains is half the difference of the two ways' times.
    """

    def __init__(self) -> None:
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=MAX_EXCHANGES)
        """How long each took, and the offset that it shows."""

    def answered(self, sent: float, received: float, answered_at: float) -> None:
        """Take an exchange: two times of this host's clock, and one of node 0's."""
        offset = answered_at - (sent + received) / 2
        self._exchanges.append((received - sent, offset))

    def to_node_zero(self, at: float) -> float | None:
        """Return a time by node 0's clock; None: no heartbeat was answered yet."""
        if not self._exchanges:
            return None
        return at + min(self._exchanges)[1]
