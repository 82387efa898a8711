"""How long somebody waits, and when he says so."""

SECONDS_TO_FIRST_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0


class Patience:
    """Ends after ``timeout`` seconds, with a notice now and then before."""

    def __init__(self, timeout: float, now: float) -> None:
        self.timeout = timeout
        self._began = now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    @property
    def due(self) -> float:
        """When there is something to say or it is over."""
        return min(self._next_notice, self._began + self.timeout)

    def is_over(self, now: float) -> bool:
        """Tell whether it has lasted long enough."""
        return now >= self._began + self.timeout

    def wants_notice(self, now: float) -> bool:
        """Tell, once, whether it is time for a notice."""
        if now < self._next_notice:
            return False
        self._next_notice = now + SECONDS_BETWEEN_NOTICES
        return True

    def waited(self, now: float) -> float:
        """Return the seconds that it has lasted."""
        return now - self._began

    def spent(self, now: float) -> str:
        """Return "30 s of 600 s"."""
        return f"{self.waited(now):.0f} s of {self.timeout:g} s"
