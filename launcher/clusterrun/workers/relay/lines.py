r"""Turns the bytes of a stream into lines, whatever they are and however they are cut. Pure.

A progress bar redraws its line after ``\r``; of such a line only the last state is kept.
"""

import re

LONGEST_LINE = 64 << 10
"""Bytes of an unfinished line that are held back; a longer one is passed on piece by piece."""

_UP_AND_DOWN = rb"(?:\x1b\[A){3}\n{3}|(?:\x1b\[A){2}\n{2}|\x1b\[A\n"
"""Back to the beginning of the same line: tqdm draws a bar below another like this."""

_FIRST_STATE = rb"[^\r\n]*"
_OVERWRITTEN = rb"(?m)^[^\n]*\r(?=[^\r\n])"
_RETURNS_BEFORE_NEWLINE = rb"\r+\n"


class LineBuffer:
    """Collects the bytes of one stream until their lines are whole."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._pending = b""
        self._passing_on = False
        self._is_redrawn = False

    @property
    def bar(self) -> bytes:
        """The unfinished line if it is a progress bar's, which has been drawn more than once."""
        return self.unfinished if self._is_redrawn else b""

    @property
    def unfinished(self) -> bytes:
        """The last line so far, in its last state; empty if it was finished or is passed on."""
        return self._pending.rstrip(b"\r")

    def feed(self, data: bytes) -> bytes:
        """Return the lines that ``data`` makes whole, and the pieces of one that is too long."""
        size = self._longest
        if len(data) <= size:
            return self._feed(data)
        return b"".join(self._feed(data[at : at + size]) for at in range(0, len(data), size))

    def finish(self) -> bytes:
        """Return the unfinished line with the newline it lacks; nothing if there is none."""
        lacking = self._passing_on or self.unfinished
        rest = self.unfinished + b"\n" if lacking else b""
        self._pending, self._passing_on, self._is_redrawn = b"", False, False
        return rest

    def _feed(self, data: bytes) -> bytes:
        if not self._passing_on:
            return self._whole_lines(data)
        end = data.find(b"\n") + 1
        if not end:
            return data
        self._passing_on = False
        return data[:end] + self._whole_lines(data[end:])

    def _whole_lines(self, data: bytes) -> bytes:
        text = self._pending + data
        if b"\x1b[A" in text:
            text = re.sub(_UP_AND_DOWN, b"\r", text)
        if len(text) > self._longest and self._begins_too_long(text):
            self._pending, self._passing_on = b"", True
            return self._feed(text)
        end = text.rfind(b"\n") + 1
        lines, self._pending = text[:end], text[end:]
        self._is_redrawn = self._is_redrawn and not end
        if b"\r" in text:
            self._is_redrawn = self._is_redrawn or b"\r" in self._pending
            self._pending = _last_state(self._pending)
            return re.sub(_RETURNS_BEFORE_NEWLINE, b"\n", re.sub(_OVERWRITTEN, b"", lines))
        return lines

    def _begins_too_long(self, text: bytes) -> bool:
        first = re.match(_FIRST_STATE, text)
        return first is not None and first.end() > self._longest


def with_prefix(prefix: bytes, text: bytes, *, continues: bool) -> bytes:
    """Return ``text`` with ``prefix`` before each line; ``continues``: not before the first."""
    if not prefix or not text:
        return text
    body = text.replace(b"\n", b"\n" + prefix)
    if text.endswith(b"\n"):
        body = body[: -len(prefix)]
    return body if continues else prefix + body


def _last_state(line: bytes) -> bytes:
    r"""Return what counts of an unfinished line; a ``\r`` at its end may still become ``\r\n``."""
    state = re.sub(_OVERWRITTEN, b"", line)
    text = state.rstrip(b"\r")
    return text if len(text) == len(state) else text + b"\r"


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
