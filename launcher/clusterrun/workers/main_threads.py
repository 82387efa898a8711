"""For how long no main thread of this node's workers has run, however much other threads print.

The kernel counts the time of each thread on a CPU: the first number of /proc/PID/task/TID/schedstat, in
nanoseconds (Documentation/scheduler/sched-stats.rst). The main thread has the number of its process.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from clusterrun.loop import Loop
from clusterrun.policy.events import Event, MainThreadsBlocked

READINGS = 8
"""In the time after which threads count as still."""

SHORTEST_INTERVAL = 1.0
"""Seconds between two readings, at least."""

MIN_SHARE = 0.001
"""Of an interval: a thread that waits with a time limit, and looks again, uses less."""


class MainThreads:
    """Reads the CPU time of main threads, and reports when none has run for long."""

    def __init__(
        self,
        loop: Loop[Event],
        pids: Callable[[], Iterable[int]],
        proc: Path = Path("/proc"),
    ) -> None:
        """Report nothing yet.

        Args:
            loop: the agent's.
            pids: returns the workers whose main threads count; some may have ended.
            proc: where the kernel shows processes.

        """
        self._loop, self._pids, self._proc = loop, pids, proc
        self._seconds = 0.0
        """After which threads count as still; 0: nothing is watched."""
        self._times: dict[int, int] = {}
        """What each has run at the last reading, in nanoseconds."""
        self._read_at = self._ran_at = 0.0
        """When that was, and when one was seen to have run."""
        self._is_reported = False

    def watch(self, seconds: float) -> None:
        """Report when no main thread has run for some seconds from now on; 0: report nothing."""
        now = self._loop.clock()
        self._loop.add(self._one_runs(now))
        self._loop.remove_timer(self)
        self._seconds, self._times, self._read_at = seconds, self._read(), now
        # Some kernels do not count: then no thread is known to be still.
        if seconds and _time_of(self._proc / "self/schedstat"):
            self._loop.time(self)

    @property
    def due(self) -> float:
        """When to read the times again."""
        return self._read_at + self._interval

    def events(self, now: float) -> Iterable[Event]:
        """Read the times; return what has changed."""
        if now < self.due:
            return
        passed, self._read_at = now - self._read_at, now
        before, self._times = self._times, self._read()
        # After a longer pause, this process was stopped, and its workers perhaps with it.
        was_stopped = passed > 2 * self._interval
        if was_stopped or _some_ran(before, self._times, MIN_SHARE * passed * 1e9):
            yield from self._one_runs(now)
        elif not self._is_reported and now - self._ran_at >= self._seconds:
            self._is_reported = True
            yield MainThreadsBlocked(now - self._ran_at, now)

    @property
    def _interval(self) -> float:
        return max(SHORTEST_INTERVAL, self._seconds / READINGS)

    def _one_runs(self, now: float) -> list[Event]:
        """Take note that a main thread has run by now; return it if that is news."""
        was_reported, self._is_reported, self._ran_at = self._is_reported, False, now
        return [MainThreadsBlocked(0.0, now)] if was_reported else []

    def _read(self) -> dict[int, int]:
        times = (
            (pid, _time_of(self._proc / f"{pid}/task/{pid}/schedstat")) for pid in self._pids()
        )
        return {pid: time for pid, time in times if time is not None}


def _some_ran(before: dict[int, int], now: dict[int, int], least: float) -> bool:
    """Return whether a thread has run for that many nanoseconds, or has begun or ended."""
    return before.keys() != now.keys() or any(now[pid] - before[pid] > least for pid in now)


def _time_of(file: Path) -> int | None:
    """Return for how many nanoseconds a thread has run; None if it has ended."""
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
