"""Removes the tracebacks that every Python worker prints after Ctrl-C. Pure."""

import re

from clusterrun.workers.relay.text.cursor_moves import COLOURS

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
