"""A helper process of the agent, as a source of its events: also of its loss, if it does not answer."""

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

LOOKS = 5
"""After so many without an answer, a helper is lost."""

LONG_GAP = 2 * SECONDS_BETWEEN_CHECKS
"""Between two looks: meanwhile this process was stopped, and perhaps the other one with it."""

STOPPED = {"T": ": it is stopped", "t": ": a debugger holds it"}
"""By the states of proc(5)."""

_RUNS = "RD"
"""One that waits for a CPU, or for a disk, goes on by itself."""

_ENDED = "ZX"


class HelperWatch:
    """Looks once a second at a helper process, which answers a ``Ping`` as soon as it gets a CPU."""

    def __init__(self, read: Callable[[int], list[str]] = stat_fields) -> None:
        """``read`` returns the fields that proc(5) counts from 3, for a process id."""
        self.is_asked = False
        """It has been sent a ``Ping``, and nothing has come from it since."""
        self._read = read
        self._looked = NEVER
        self._unanswered: int | None = None
        """Looks since the first one of those that have found it silent; None: the last one has not."""
        self._ticks = 0

    def begin(self, now: float) -> None:
        """Watch a process that has been started just now."""
        self.is_asked, self._looked, self._unanswered = False, now, None

    @property
    def due(self) -> float:
        """When to call ``look``: all that has come from the process must have been read then."""
        return self._looked + SECONDS_BETWEEN_CHECKS

    def heard(self) -> None:
        """Take note that something has come from it."""
        self.is_asked, self._unanswered = False, None

    def look(self, pid: int, now: float) -> str:
        """Look at it; return how it does not answer, or "".

        A process that was asked has something to read. So it is running or waiting for a CPU (state R),
        however busy the machine is, unless it is stopped or waits for something else. If it uses no CPU
        in all these seconds either, it will not answer.
        """
        state, *rest = self._read(pid)
        ticks = sum(map(int, rest[10:12]))
        has_done_something = ticks != self._ticks
        was_stopped_ourselves = now - self._looked > LONG_GAP
        self._looked, self._ticks = now, ticks
        sleeps = self.is_asked and state not in _RUNS + _ENDED
        if state not in STOPPED and not sleeps:
            self._unanswered = None
        elif self._unanswered is None or has_done_something or was_stopped_ourselves:
            self._unanswered = 0
        else:
            self._unanswered += 1
        if self._unanswered is None or self._unanswered < LOOKS:
            return ""
        return f"has not answered for {LOOKS * SECONDS_BETWEEN_CHECKS:g} s{STOPPED.get(state, '')}"


class HelperClient(Generic[SentT, TakenT]):
    """A helper process at the other end of a channel, as a source of the agent's events.

    One that does not answer any more is killed, and is lost.
    """

    name = ""
    """As the user reads it."""

    def __init__(self, channel: HelperChannel[SentT, TakenT], pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask it to."""
        self._channel = channel
        self._loop: Loop[Event] | None = None
        self._helper_watch = HelperWatch()

    @property
    def due(self) -> float:
        """When to call ``events``, even if nothing has come."""
        return NEVER if self.lost else self._helper_watch.due

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process, until it is lost or closed."""
        self._loop = loop
        self._helper_watch.begin(loop.clock())
        loop.time(self)
        self._watch()

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        self._channel.flush()
        if not self.lost:
            yield from self._happened(now)
        # All that has come is read by now.
        if not self.lost and now >= self._helper_watch.due:
            yield from self._look(now)
        self._watch()

    def _look(self, now: float) -> Iterable[Event]:
        how = self._helper_watch.look(self._watched_pid, now)
        if how:
            self.lost = True
            self._kill(how)
            yield HelperLost(self.name, how, signal.SIGKILL, now)
        elif not self._helper_watch.is_asked:
            self._helper_watch.is_asked = self._ping()

    @property
    def _watched_pid(self) -> int:
        return self.pid

    def _ping(self) -> bool:
        """Ask it for an answer, if it answers at once; if it does not, only one that is stopped is lost."""
        return False

    def _kill(self, how: str) -> None:
        """End the process, which does not answer, and all that it has started."""
        raise NotImplementedError

    def _happened(self, now: float) -> Iterable[Event]:
        """Read what the process has sent; set ``lost`` if it has ended."""
        raise NotImplementedError

    def _send(self, message: SentT, descriptors: Sequence[int] = ()) -> None:
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
        """Be waited for no more: to be called before the channel is closed."""
        if self._loop is not None:
            self._loop.remove_timer(self)
            self._loop.forget(self._channel.fileno())
            self._loop = None
