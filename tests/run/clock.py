"""Time that passes when a test says so."""


class FakeClock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        """Begin 50 s after the start of this machine."""
        self.now = 50.0

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.now

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return 1_000.0 + self.now
