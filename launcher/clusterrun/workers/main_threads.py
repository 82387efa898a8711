"""Reports when no main thread of this node's workers has run for long, even if other threads print.

The kernel counts each thread's time on a CPU: the first number of /proc/PID/task/TID/schedstat, in
nanoseconds (Documentation/scheduler/sched-stats.rst). A main thread has the id of its process.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from clusterrun.loop import Loop
from clusterrun.policy.events import Event, MainThreadsBlocked

READINGS = 8
"""Readings in the time after which threads count as blocked."""

MIN_INTERVAL = 1.0
"""Seconds between two readings."""

MIN_SHARE = 0.001
"""Share of an interval; a thread that polls with a timeout uses less."""


class MainThreads:
    """Reads the CPU time of main threads, and reports when none has run for long."""

    def __init__(
        self,
        loop: Loop[Event],
        pids: Callable[[], Iterable[int]],
        proc: Path = Path("/proc"),
    ) -> None:
        """Report nothing until ``watch`` is called.

        Args:
            loop: the agent's loop.
            pids: returns the workers whose main threads count; some may have ended.
            proc: the path of the proc file system.

        """
        self._loop, self._pids, self._proc = loop, pids, proc
        self._seconds = 0.0
        """Time after which threads count as blocked; 0: nothing is watched."""
        self._times: dict[int, int] = {}
        """CPU time by pid at the last reading, in nanoseconds."""
        self._read_at = self._ran_at = 0.0
        """Times of the last reading, and of the last one that found a thread running."""
        self._is_reported = False

    def watch(self, seconds: float) -> None:
        """Report when no main thread has run for ``seconds`` from now on; 0: report nothing."""
        now = self._loop.clock()
        self._loop.add(self._note_run(now))
        self._loop.remove_timer(self)
        self._seconds, self._times, self._read_at = seconds, self._read(), now
        # On a kernel that does not count, a blocked thread can't be told from a running one.
        if seconds and _cpu_time(self._proc / "self/schedstat"):
            self._loop.add_timer(self)

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
        if was_stopped or _any_ran(before, self._times, MIN_SHARE * passed * 1e9):
            yield from self._note_run(now)
        elif not self._is_reported and now - self._ran_at >= self._seconds:
            self._is_reported = True
            yield MainThreadsBlocked(now - self._ran_at, now)

    @property
    def _interval(self) -> float:
        return max(MIN_INTERVAL, self._seconds / READINGS)

    def _note_run(self, now: float) -> list[Event]:
        """Note that a main thread has run; return the event if they were reported as blocked."""
        was_reported, self._is_reported, self._ran_at = self._is_reported, False, now
        return [MainThreadsBlocked(0.0, now)] if was_reported else []

    def _read(self) -> dict[int, int]:
        times = (
            (pid, _cpu_time(self._proc / f"{pid}/task/{pid}/schedstat")) for pid in self._pids()
        )
        return {pid: time for pid, time in times if time is not None}


def _any_ran(before: dict[int, int], now: dict[int, int], least: float) -> bool:
    """Return whether a thread has run for more than ``least`` nanoseconds, has started or has ended."""
    return before.keys() != now.keys() or any(now[pid] - before[pid] > least for pid in now)


def _cpu_time(file: Path) -> int | None:
    """Return a thread's CPU time in nanoseconds; None if it has ended."""
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
