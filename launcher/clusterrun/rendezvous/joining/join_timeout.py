"""The time in which all nodes have to join, and when to print that this node still waits."""

from clusterrun.coordination.notices import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE


class JoinTimeout:
    """Starts at ``now`` and is over after ``seconds``."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self._start = now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    @property
    def due(self) -> float:
        """When a notice is due or the time is over."""
        return min(self._next_notice, self._start + self.seconds)

    def is_over(self, now: float) -> bool:
        return now >= self._start + self.seconds

    def notice_is_due(self, now: float) -> bool:
        """Return True once for each notice that is due."""
        if now < self._next_notice:
            return False
        self._next_notice = now + SECONDS_BETWEEN_NOTICES
        return True

    def elapsed(self, now: float) -> float:
        return now - self._start

    def elapsed_text(self, now: float) -> str:
        """Return "30 s of 600 s"."""
        return f"{self.elapsed(now):.0f} s of {self.seconds:g} s"
