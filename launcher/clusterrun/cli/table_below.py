"""A table that stays below what is printed on a terminal."""

import os
from collections.abc import Sequence

from clusterrun.report.live_table import Line

UP_AND_CLEAR = "\x1b[{}A\x1b[J"
BOLD_RED, PLAIN = "\x1b[1;31m", "\x1b[0m"


class TableBelow:
    """The last lines of a terminal. What is printed goes above them, byte for byte."""

    def __init__(self, descriptor: int, *, coloured: bool) -> None:
        self._descriptor = descriptor
        self._coloured = coloured
        self._lines: Sequence[Line] = ()
        self._drawn: list[str] = []
        """Each of these lines is on the terminal, and the cursor is below the last one."""
        self._unfinished = b""
        """The last line that was printed, if its end has not come."""

    def size(self) -> tuple[int, int]:
        """Return the terminal's columns and lines; a terminal that does not tell has 80 and 24."""
        try:
            found = os.get_terminal_size(self._descriptor)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def print(self, data: bytes) -> None:
        """Print whole lines; one that is not complete waits for its end."""
        data = self._unfinished + data
        end = data.rfind(b"\n") + 1
        whole, self._unfinished = data[:end], data[end:]
        if len(self._unfinished) > self.size()[0]:
            # A very long one, or a progress bar.
            whole, self._unfinished = data, b""
        self._draw(whole)

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines from now on."""
        self._lines = lines
        self._draw(b"")

    def clear(self) -> None:
        """Remove the table; it comes back with the next line, or the next call of ``show``."""
        self._write(self._above().encode())

    def end(self) -> None:
        """Remove the table for good, and print what is left."""
        self._write(self._above().encode() + self._unfinished)

    def _draw(self, data: bytes) -> None:
        above = self._above().encode()
        if data and not data.endswith(b"\n"):
            data += b"\n"
        # It may be a question that waits for an answer.
        begun = [Line(self._unfinished.decode(errors="replace"))] if self._unfinished else []
        shown = [line.text for line in (*begun, *self._lines)]
        texts = [self._styled(line) for line in (*begun, *self._lines)]
        self._write(above + data + "".join(f"{text}\n" for text in texts).encode())
        self._drawn = shown

    def _above(self) -> str:
        """Return what moves the cursor to the table's first line, and removes the table."""
        width = self.size()[0]
        # A terminal that has become narrower has wrapped them.
        rows = sum(max(1, -(-len(text) // width)) for text in self._drawn)
        self._drawn = []
        return UP_AND_CLEAR.format(rows) if rows else ""

    def _styled(self, line: Line) -> str:
        return f"{BOLD_RED}{line.text}{PLAIN}" if line.is_bad and self._coloured else line.text

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            # The terminal is gone, and SIGHUP comes: the job's own output ends it.
            return
