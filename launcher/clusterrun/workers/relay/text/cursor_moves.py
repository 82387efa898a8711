"""What moves the cursor of a terminal that all ranks share, taken out of their lines. Pure."""

import re

COLOURS = re.compile(rb"\x1b\[[0-9;:]*m")
"""Sequences that set colours and the like, and move nothing."""

_MOVEMENTS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]")
_UP = re.compile(rb"\x1b\[([0-9]{0,4})[AF]")
_HIGHEST_BLOCK = 100
"""Lines: whoever moves up further clears a screen."""


def without_movements(text: bytes) -> bytes:
    """Return ``text`` with its colours, and with nothing that moves the cursor."""
    return _MOVEMENTS.sub(b"", text) if b"\x1b" in text else text


class RedrawFilter:
    """Shows a block of lines that is drawn again and again, as rich's bars are, at its end alone.

    Such a block moves up and draws all its lines; the last of them has no end before the block has.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._coming = 0

    def feed(self, lines: bytes) -> bytes:
        """Return what is to be shown of some whole ``lines``, and of those held back before."""
        if b"\x1b" not in lines and not self._held:
            return lines
        return b"".join(self._feed_line(line) for line in lines.splitlines(keepends=True))

    def finish(self) -> bytes:
        """Return what is still held back: the block has no last line to draw, or the stream ended."""
        held, self._held, self._coming = b"".join(self._held), [], 0
        return held

    def _feed_line(self, line: bytes) -> bytes:
        text = without_movements(line)
        up = sum(int(count or 1) for count in _UP.findall(line))
        if 0 < up <= _HIGHEST_BLOCK:
            # What was drawn before is overdrawn.
            self._held, self._coming = [text], up - 1
            return b""
        if self._coming:
            self._held.append(text)
            self._coming -= 1
            return b""
        return self.finish() + text
