"""A helper process of the agent as a source of events, among them its loss if it stops responding."""

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, HelperLost
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.fork_server.kernel import stat_fields

SentT = TypeVar("SentT", bound=NamedTuple)
TakenT = TypeVar("TakenT", bound=NamedTuple)

SECONDS_BETWEEN_CHECKS = 1.0

MAX_FAILED_CHECKS = 5
"""After so many consecutive checks without an answer, a helper is lost."""

LONG_GAP = 2 * SECONDS_BETWEEN_CHECKS
"""After a longer time between two checks, this process was stopped, and perhaps the helper with it."""

STOPPED = {"T": ": it is stopped", "t": ": a debugger has stopped it"}
"""Causes by process state (proc(5))."""

_RUNNABLE = "RD"
"""A process that waits for a CPU or a disk continues by itself."""

_ENDED = "ZX"


class HelperWatch:
    """Checks a helper process once a second; it answers a ``Ping`` as soon as it gets a CPU."""

    def __init__(self, read: Callable[[int], list[str]] = stat_fields) -> None:
        """``read`` returns the fields of a process that proc(5) counts from 3."""
        self.is_pinged = False
        """A ``Ping`` was sent, and no message has come since."""
        self._read = read
        self._checked_at = NEVER
        self._failed_checks: int | None = None
        """Consecutive failed checks after the first one; None if the last check succeeded."""
        self._ticks = 0

    def begin(self, now: float) -> None:
        """Watch a process that has just been started."""
        self.is_pinged, self._checked_at, self._failed_checks = False, now, None

    @property
    def due(self) -> float:
        """When to call ``check``, after all messages of the process were read."""
        return self._checked_at + SECONDS_BETWEEN_CHECKS

    def message_received(self) -> None:
        self.is_pinged, self._failed_checks = False, None

    def check(self, pid: int, now: float) -> str | None:
        """Return how the process does not respond, or None.

        A pinged process has something to read. So it runs or waits for a CPU (state R), however busy the
        machine is, unless it is stopped or waits for something else. If it also uses no CPU time in all
        these seconds, it will not answer.
        """
        state, *rest = self._read(pid)
        ticks = sum(map(int, rest[10:12]))
        has_run = ticks != self._ticks
        was_stopped_ourselves = now - self._checked_at > LONG_GAP
        self._checked_at, self._ticks = now, ticks
        sleeps = self.is_pinged and state not in _RUNNABLE + _ENDED
        if state not in STOPPED and not sleeps:
            self._failed_checks = None
        elif self._failed_checks is None or has_run or was_stopped_ourselves:
            self._failed_checks = 0
        else:
            self._failed_checks += 1
        if self._failed_checks is None or self._failed_checks < MAX_FAILED_CHECKS:
            return None
        seconds = MAX_FAILED_CHECKS * SECONDS_BETWEEN_CHECKS
        return f"has not answered for {seconds:g} s{STOPPED.get(state, '')}"


class HelperClient(Generic[SentT, TakenT]):
    """A helper process at the other end of a channel, as a source of the agent's events.

    A helper that does not respond is killed and counts as lost.
    """

    name = ""
    """The helper's name in messages."""

    def __init__(self, channel: HelperChannel[SentT, TakenT], pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask for that."""
        self._channel = channel
        self._loop: Loop[Event] | None = None
        self._helper_watch = HelperWatch()

    @property
    def due(self) -> float:
        """When to call ``events`` even if no message has come."""
        return NEVER if self.lost else self._helper_watch.due

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process until it is lost or closed."""
        self._loop = loop
        self._helper_watch.begin(loop.clock())
        loop.add_timer(self)
        self._watch()

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened by ``now``, a time of the agent's monotonic clock."""
        self._channel.flush()
        if not self.lost:
            yield from self._handle(now)
        # All messages have been read by now.
        if not self.lost and now >= self._helper_watch.due:
            if how := self._helper_watch.check(self._watched_pid, now):
                yield self._declare_lost(how, now)
            elif not self._helper_watch.is_pinged:
                self._helper_watch.is_pinged = self._ping()
        self._watch()

    def _declare_lost(self, how: str, now: float) -> Event:
        self.lost = True
        self._kill(how)
        return HelperLost(self.name, how, signal.SIGKILL, now)

    @property
    def _watched_pid(self) -> int:
        return self.pid

    def _ping(self) -> bool:
        """Send a ``Ping`` if the process can answer it now; else only a stopped process is lost."""
        return False

    def _kill(self, how: str) -> None:
        """Kill the unresponsive process and all that it has started."""
        raise NotImplementedError

    def _handle(self, now: float) -> Iterable[Event]:
        """Handle what the process has sent; set ``lost`` if it has ended."""
        raise NotImplementedError

    def send(self, message: SentT, descriptors: Sequence[int] = ()) -> None:
        self._channel.send(message, descriptors)
        if self._channel.wants_write:
            self._watch()

    def _watch(self) -> None:
        if self._loop is None:
            return
        channel = self._channel
        if self.lost or channel.fileno() < 0:
            self._leave_loop()
        else:
            self._loop.watch(channel.fileno(), self.events, writes=channel.wants_write)

    def _leave_loop(self) -> None:
        """Remove this process from the loop; call this before the channel is closed."""
        if self._loop is not None:
            self._loop.remove_timer(self)
            self._loop.forget(self._channel.fileno())
            self._loop = None
