"""The launcher's standard output and error, on which whole lines of many workers are printed.

On a terminal, one live line is drawn below them.
"""

import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest

from msgspec import Struct

from clusterrun.descriptor_output import DescriptorOutput, LineOutput, open_output
from clusterrun.errors import printable
from clusterrun.loop import NEVER
from clusterrun.workers.relay.recent_output import plain
from clusterrun.workers.relay.routes import LauncherOutput

MAX_LINE_LENGTH = 64 << 10
"""Bytes of an unfinished line that are held back; a longer line is printed in pieces."""

COLOURS = rb"\x1b\[[0-9;:]*m"
"""Control sequences that set colours and styles, and move no cursor."""

_CLEAR_LINE = b"\r\x1b[K"
_NO_COLOUR = b"\x1b[0m"
_REDRAW_SECONDS = 0.1
_DEFAULT_COLUMNS = 80
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of the prefixes, in turn; red is for errors."""


class Source(Struct, frozen=True):
    """A stream of a worker; the live line shows the source with the lowest ``order``."""

    order: tuple[int, int]
    """The local rank, and the number of its stream."""
    prefix: bytes


class Unfinished(Struct, frozen=True):
    """The last, incomplete line of a stream, in its latest state."""

    text: bytes = b""
    is_bar: bool = False
    """Whether it is a progress bar, which was drawn more than once."""


class Display:
    """A terminal, pipe or file, which all sources share line by line.

    Args:
        output: takes the bytes.
        terminal: the descriptor if it is a terminal. Only a terminal has a live line, which shows no
            progress bar if several workers draw one.

    """

    def __init__(self, output: LineOutput, terminal: int | None) -> None:
        self.output = output
        self.terminal = terminal
        self.has_unlogged_lines = False
        """Whether something was printed that is in no log file."""
        self.shows_bars = terminal is not None
        """Whether a progress bar is on the live line."""
        self._unterminated: Source | None = None
        """The source whose last text was printed without a newline."""
        self._live: dict[Source, Unfinished] = {}
        self._drawn = b""
        """The live line that is on the terminal."""
        self._stale = False
        self._drawn_at = -math.inf

    @property
    def due(self) -> float:
        """When to ``redraw`` (monotonic seconds); NEVER if there is no need, or the output is busy."""
        if not self._stale or self._unterminated or self.output.waiting:
            return NEVER
        return self._drawn_at + _REDRAW_SECONDS

    def show(self, source: Source, text: bytes, *, is_logged: bool = False) -> None:
        """Print whole lines of ``source``, or a piece of a line that is too long to be held back.

        If another source prints before that line is complete, the line is broken.
        """
        if not text:
            return
        self.has_unlogged_lines |= not is_logged
        continues = self._unterminated == source
        self._end_line(breaking=not continues)
        self.output.write(with_prefix(source.prefix, text, continues=continues))
        self._unterminated = None if text.endswith(b"\n") else source

    def notice(self, text: bytes) -> None:
        self._end_line(breaking=True)
        self.output.write(text)

    def update(self, source: Source, unfinished: Unfinished) -> None:
        """Set the unfinished line of ``source``; an empty text means none."""
        if self.terminal is None or self._live.get(source, Unfinished()) == unfinished:
            return
        self._live.pop(source, None)
        if unfinished.text:
            self._live[source] = unfinished
        drawing_ranks = {it.order[0] for it, line in self._live.items() if line.is_bar}
        self.shows_bars = len(drawing_ranks) <= 1
        self._stale = True

    def redraw(self, now: float) -> None:
        """Draw or remove the live line if that is due."""
        if self.due > now:
            return
        line = self._live_line()
        if line != self._drawn:
            self.output.write(_CLEAR_LINE + line)
        self._drawn, self._stale, self._drawn_at = line, False, now

    def clear(self) -> None:
        """Remove the live line for good."""
        self._live.clear()
        self._end_line(breaking=False)
        self._stale = False

    def _end_line(self, *, breaking: bool) -> None:
        if self._unterminated and breaking:
            self.output.write(b"\n")
            self._unterminated = None
        if self._drawn:
            self.output.write(_CLEAR_LINE)
            self._drawn, self._stale = b"", bool(self._live)

    def _live_line(self) -> bytes:
        live = [it for it, line in self._live.items() if self.shows_bars or not line.is_bar]
        if not live:
            return b""
        source = min(live, key=lambda source: source.order)
        # The last column stays empty, because terminals wrap there.
        return _cut_coloured(source.prefix + self._live[source].text, self._columns() - 1)

    def _columns(self) -> int:
        columns = 0
        with suppress(OSError):
            columns = os.get_terminal_size(self.terminal or 0).columns
        return columns or _DEFAULT_COLUMNS


def with_prefix(prefix: bytes, text: bytes, *, continues: bool) -> bytes:
    """Return ``text`` with ``prefix`` before each line, but not before the first if it ``continues``."""
    if not prefix or not text:
        return text
    body = text.replace(b"\n", b"\n" + prefix)
    if text.endswith(b"\n"):
        body = body[: -len(prefix)]
    return body if continues else prefix + body


def coloured(prefix: str, colour: int) -> str:
    """Return ``prefix`` in the colour with this number; spaces at its end stay uncoloured.

    A prefix with its own colours stays as it is.
    """
    text = prefix.rstrip(" ")
    if not text or "\x1b" in text:
        return prefix
    return f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m{text}\x1b[0m{prefix[len(text) :]}"


def _cut_coloured(line: bytes, columns: int) -> bytes:
    """Return the beginning of a line that fits into ``columns``, with colours but no other sequences."""
    texts, colours = re.split(COLOURS, line), re.findall(COLOURS, line)
    fitting = b""
    for text, colour in zip_longest(texts, colours, fillvalue=b""):
        cut = _cut(plain(text), columns)
        columns -= sum(map(_width, cut))
        fitting += cut.encode() + colour
    return fitting + _NO_COLOUR if colours else fitting


def _cut(text: str, columns: int) -> str:
    """Return the beginning of ``text`` that fits into ``columns``."""
    used = 0
    for index, character in enumerate(text := text.replace("\t", " ")):
        used += _width(character)
        if used > columns:
            return text[:index]
    return text


def _width(character: str) -> int:
    # Only the live line of a terminal needs it.
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """The launcher's standard output and standard error.

    Args:
        launcher: their descriptors.
        open_file: returns the output for the descriptor of a regular file; the text is its name.

    """

    def __init__(
        self, launcher: LauncherOutput, open_file: Callable[[int, str], LineOutput]
    ) -> None:
        self.outputs: list[DescriptorOutput] = []
        """Outputs to be flushed whenever they are writable."""
        self._unreported: list[Display] = []
        """Displays on ``outputs`` whose failure was not reported."""
        self.stdout = self._display(launcher.stdout, "standard output", open_file)
        self.stderr = self.stdout
        if not os.path.sameopenfile(launcher.stdout, launcher.stderr):
            self.stderr = self._display(launcher.stderr, "standard error", open_file)
        self.displays = tuple(dict.fromkeys((self.stdout, self.stderr)))
        """Both, or one if they are the same file."""

    @property
    def waits(self) -> bool:
        """Whether a reader is behind."""
        return any(output.waiting for output in self.outputs)

    def print_text(self, text: str) -> None:
        """Print lines of the launcher itself."""
        self.stderr.notice(printable(text.rstrip("\n"), "\t\n").encode() + b"\n")

    @property
    def due(self) -> float:
        """When to ``draw`` even if nothing was shown."""
        return min(display.due for display in self.displays)

    def draw(self, now: float) -> None:
        """Write the lines, then the live line below them."""
        self.flush()
        for display in self.displays:
            display.redraw(now)
        self.flush()

    def flush(self) -> None:
        for output in self.outputs:
            output.flush()

    def failed(self) -> Iterator[tuple[Display, OSError]]:
        """Yield, once, each display that can't be written any more."""
        for display in list(self._unreported):
            if display.output.failure is not None:
                self._unreported.remove(display)
                yield display, display.output.failure

    def finish(self) -> None:
        """Remove the live line."""
        for display in self.displays:
            display.clear()

    def _display(
        self, descriptor: int, name: str, open_file: Callable[[int, str], LineOutput]
    ) -> Display:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Display(open_file(descriptor, name), None)
        output = open_output(descriptor, name)
        self.outputs.append(output)
        display = Display(output, descriptor if os.isatty(descriptor) else None)
        self._unreported.append(display)
        return display
