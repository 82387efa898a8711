"""Heartbeats: when agents send them, and after which silence a node is lost.

The kernel reports at once that an agent has ended. It reports nothing of an agent that is frozen, of a
host without power, or of a cable that was cut: only their silence shows it.
"""

from collections.abc import Iterable

from clusterrun.loop import NEVER
from clusterrun.policy.messages import HeartbeatAnswer
from clusterrun.policy.terms import HeartbeatRhythm

PART_TO_KILL = 0.5
"""Of an interval: the agent kills workers so long before their lease ends, and says why."""


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
    """A member's side: when to send a heartbeat, and whether the coordinator is lost."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        """Begin as if the coordinator had just sent something."""
        self.rhythm = rhythm
        self._clock = ListeningClock(rhythm, now)
        self._silent_at = rhythm.timeout
        self._next_heartbeat = now + rhythm.interval
        self._paused = False
        self.heard_at = now
        """When the coordinator's last message was read."""

    @property
    def due(self) -> float:
        """When a heartbeat is due, or the coordinator is lost."""
        return min(self._next_heartbeat, self._clock.moment(self._silent_at))

    def received(self, now: float) -> None:
        """Take note that the coordinator sent something."""
        self.heard_at = now
        if not self._paused:
            self._silent_at = self._clock.at(now) + self.rhythm.timeout

    def leased(self, now: float, ends: float) -> None:
        """Let the coordinator be lost shortly before a lease ends, so that the agent acts first."""
        if not self._paused:
            left = ends - now - self.rhythm.interval * PART_TO_KILL
            self._silent_at = self._clock.at(now) + left

    def pause(self) -> None:
        """Send and expect nothing: the coordinator is about to be paused.

        It would read nothing: heartbeats would fill its buffers, and the kernel take it for dead.
        """
        self._paused = True
        self._silent_at = self._next_heartbeat = NEVER

    def resume(self, now: float) -> None:
        """Go on: the coordinator has just sent that it continues."""
        self._paused = False
        self._next_heartbeat = now
        self.received(now)

    def is_heartbeat_due(self, now: float) -> bool:
        """Return, once for each heartbeat, whether to send it now."""
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + self.rhythm.interval
        return True

    def is_lost(self, now: float) -> bool:
        """Return whether the coordinator has been silent for too long."""
        return self._clock.at(now) >= self._silent_at


class SilenceWatch:
    """The coordinator's side: which members, by number, have been silent for too long."""

    def __init__(self, rhythm: HeartbeatRhythm, now: float) -> None:
        self._rhythm = rhythm
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
        return min(first, self._looked + self._rhythm.interval)

    def received(self, number: int, now: float) -> None:
        """Take note that a member sent something; begin to watch it if this is its first message."""
        self._silent_at.pop(number, None)
        self._silent_at[number] = self._clock.at(now) + self._rhythm.timeout

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


class MemberLease:
    """Until when a member's workers may run, as one coordinator has answered: see ``majority``."""

    def __init__(self) -> None:
        """Begin without a lease: the coordinator has not answered yet."""
        self.ends = 0.0
        """By the member's clock."""
        self.seen = 0.0
        """When the newest answer was sent, by the coordinator's clock: the next heartbeat says it."""
        self.was_paused = False
        """The coordinator has not answered since this agent was paused."""

    def answered(self, answer: HeartbeatAnswer, now: float) -> None:
        """Take an answer, which may have waited to be read: only when its question was sent counts."""
        self.seen = answer.at
        self.was_paused = False
        self.ends = max(self.ends, min(answer.to, now) + answer.lease)
