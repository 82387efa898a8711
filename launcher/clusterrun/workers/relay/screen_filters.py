"""What the screen leaves out of the workers' lines: cursor movements, and tracebacks after Ctrl-C. Pure."""

import re

COLOURS = rb"\x1b\[[0-9;:]*m"
"""Sequences that set colours and styles, and move nothing."""

_MOVEMENTS = rb"\x1b\[[0-?]*[ -/]*[@-ln-~]"
_UP = rb"\x1b\[([0-9]{0,4})[AF]"
_HIGHEST_BLOCK = 100
"""Lines; a larger movement clears a screen."""


def without_movements(text: bytes) -> bytes:
    """Return ``text`` with its colours and without cursor movements."""
    return re.sub(_MOVEMENTS, b"", text) if b"\x1b" in text else text


class RedrawFilter:
    """Shows a block of lines that is redrawn, such as rich's bars, only when it is finished.

    Such a block moves up and draws all its lines; the last one gets its newline when the block ends.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._expected = 0

    def feed(self, lines: bytes) -> bytes:
        """Return what to show of whole ``lines``, and of those held back before."""
        if b"\x1b" not in lines and not self._held:
            return lines
        return b"".join(self._feed_line(line) for line in lines.splitlines(keepends=True))

    def finish(self) -> bytes:
        """Return what is still held back: the block or the stream has ended."""
        held, self._held, self._expected = b"".join(self._held), [], 0
        return held

    def _feed_line(self, line: bytes) -> bytes:
        text = without_movements(line)
        up = sum(int(count or 1) for count in re.findall(_UP, line))
        if 0 < up <= _HIGHEST_BLOCK:
            # The lines drawn before are overwritten.
            self._held, self._expected = [text], up - 1
            return b""
        if self._expected:
            self._held.append(text)
            self._expected -= 1
            return b""
        return self.finish() + text


LONGEST_TRACEBACK = 64 << 10
"""Bytes that are held back while a traceback might still end in KeyboardInterrupt."""

BEGIN = b"Traceback (most recent call last):"
INTERRUPT = b"KeyboardInterrupt"


class InterruptFilter:
    """Leaves tracebacks that end in KeyboardInterrupt out of a stream's lines, once it is armed.

    The log files and the tail for the report keep them.
    """

    def __init__(self) -> None:
        self.armed = False
        self._held: list[bytes] = []

    def feed(self, lines: bytes) -> bytes:
        """Return what to show of whole ``lines``, and of those held back before."""
        if not self.armed:
            return lines
        return b"".join(self._feed_line(line) for line in lines.splitlines(keepends=True))

    def finish(self) -> bytes:
        """Return what is still held back: the stream has ended."""
        held, self._held = b"".join(self._held), []
        return held

    def _feed_line(self, line: bytes) -> bytes:
        # Python 3.13 and later colour their tracebacks.
        text = re.sub(COLOURS, b"", line)
        if not self._held and not text.startswith(BEGIN):
            return line
        self._held.append(line)
        if text.startswith(INTERRUPT):
            self._held.clear()
            return b""
        # Frames are indented; the first line that is not names the exception.
        goes_on = text.startswith((b" ", BEGIN)) and sum(map(len, self._held)) < LONGEST_TRACEBACK
        return b"" if goes_on else self.finish()
