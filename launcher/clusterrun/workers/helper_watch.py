"""Notices a helper process that lives and does nothing any more."""

from collections.abc import Callable

from clusterrun.loop import NEVER
from clusterrun.workers.fork_server.kernel import stat_fields

SECONDS_BETWEEN_LOOKS = 1.0

LOOKS = 5
"""After so many without an answer, a helper is lost."""

LONG_GAP = 2 * SECONDS_BETWEEN_LOOKS
"""Between two looks: meanwhile this process was stopped, and perhaps the other one with it."""

STOPPED = {"T": ": it is stopped", "t": ": a debugger holds it"}
"""By the states of proc(5)."""

_RUNS = "RD"
"""One that waits for a CPU, or for a disk, goes on by itself."""

_ENDED = "ZX"


class HelperWatch:
    """Looks once a second at a helper process, which answers a ``ping`` as soon as it gets a CPU."""

    def __init__(self, read: Callable[[int], list[str]] = stat_fields) -> None:
        """``read`` returns the fields that proc(5) counts from 3, for a process id."""
        self.is_asked = False
        """It has been sent a ``ping``, and nothing has come from it since."""
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
        return self._looked + SECONDS_BETWEEN_LOOKS

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
        return f"has not answered for {LOOKS * SECONDS_BETWEEN_LOOKS:g} s{STOPPED.get(state, '')}"
