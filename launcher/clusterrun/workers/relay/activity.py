"""Whether workers print or end, or have done neither for long."""

from collections.abc import Callable

from clusterrun.workers.channel import Message


class ActivityWatch:
    """Reports to the agent when no worker has been active for some seconds, and when one is again."""

    def __init__(self, report: Callable[[Message], None]) -> None:
        self._report = report
        self._seconds = 0.0
        self._active_at = 0.0
        self._is_idle = False

    @property
    def due(self) -> float | None:
        """When to ``check``; None: the agent does not ask, or knows."""
        return self._active_at + self._seconds if self._seconds and not self._is_idle else None

    def watch(self, seconds: float, now: float) -> None:
        """Watch from now on for ``seconds`` without activity; 0: not at all."""
        self._seconds = seconds
        self.note(now)

    def note(self, now: float) -> None:
        """Note that a worker has printed, started or ended."""
        self._active_at = now
        if self._is_idle:
            self._is_idle = False
            self._report({"kind": "active"})

    def check(self, now: float) -> None:
        """Report, once, that the workers are idle."""
        if self.due is not None and now >= self.due:
            self._is_idle = True
            self._report({"kind": "idle", "seconds": self._seconds})
