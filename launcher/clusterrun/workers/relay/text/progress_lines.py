"""When the state of a progress bar is written as a line, where no terminal shows the bar."""


class Progress:
    """The bar of one stream, if it draws one; its last state is a line anyway."""

    def __init__(self, interval: float) -> None:
        """Take the seconds between two lines of one bar; 0: no line before its end."""
        self._interval = interval
        self._since: float | None = None
        self._printed = b""
        self._state = b""

    @property
    def due(self) -> float | None:
        """When to ``look`` at a bar that is not redrawn meanwhile; None: not before it is redrawn."""
        if self._since is None or self._state == self._printed:
            return None
        return self._since + self._interval

    def look(self, state: bytes, now: float) -> bytes:
        """Take the bar's state, b"" if there is no bar; return it if it is due."""
        if not self._interval or not state.strip():
            self._since, self._state, self._printed = None, b"", b""
            return b""
        if self._since is None:
            self._since = now
        self._state = state
        if self.due is None or now < self.due:
            return b""
        self._since, self._printed = now, state
        return state
