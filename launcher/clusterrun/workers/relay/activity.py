"""Whether workers print or end, or have done neither for long."""

from collections.abc import Callable

from clusterrun.workers.channel import Message


class Stillness:
    """Tells the agent when nothing has moved for so long, and when something moves again."""

    def __init__(self, answer: Callable[[Message], None]) -> None:
        self._answer = answer
        self._seconds = 0.0
        self._moved_at = 0.0
        self._told = False

    @property
    def due(self) -> float | None:
        """When to ``look``; None: nobody wants to know, or knows already."""
        return self._moved_at + self._seconds if self._seconds and not self._told else None

    def watch(self, seconds: float, now: float) -> None:
        """Watch from now on for so many seconds without a move; 0: not at all."""
        self._seconds = seconds
        self.moved(now)

    def moved(self, now: float) -> None:
        """Take note that a worker has printed, started or ended."""
        self._moved_at = now
        if self._told:
            self._told = False
            self._answer({"kind": "moving"})

    def look(self, now: float) -> None:
        """Tell, once, that nothing moves."""
        if self.due is not None and now >= self.due:
            self._told = True
            self._answer({"kind": "still", "seconds": self._seconds})
