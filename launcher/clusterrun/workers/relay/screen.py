"""Where lines are shown: the launcher's standard output and error, or those of its caller.

Whole lines of many workers share them; on a terminal, one live line stands below.
"""

import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from itertools import zip_longest

from msgspec import Struct

from clusterrun.descriptor_output import DescriptorOutput, LineOutput, open_output
from clusterrun.errors import printable
from clusterrun.loop import NEVER
from clusterrun.workers.relay.kept import plain
from clusterrun.workers.relay.routes import LauncherOutput

MAX_LINE_LENGTH = 64 << 10
"""Bytes of an unfinished line that are held back; a longer one is passed on piece by piece."""

COLOURS = rb"\x1b\[[0-9;:]*m"
"""Sequences that set colours and styles, and move nothing."""

_CLEAR_LINE = b"\r\x1b[K"
_NO_COLOUR = b"\x1b[0m"
_REDRAW_SECONDS = 0.1
_DEFAULT_COLUMNS = 80
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of the prefixes, by turns; red is for errors."""


class Source(Struct, frozen=True):
    """A stream that prints; the live line belongs to the one with the lowest ``order``."""

    order: tuple[int, int]
    """The local rank, and which of its streams."""
    prefix: bytes


class Unfinished(Struct, frozen=True):
    """The last line of a stream, in its last state."""

    text: bytes = b""
    is_bar: bool = False
    """A progress bar's: it was drawn more than once."""


class Display:
    """One terminal, pipe, file or stream of the caller, which all sources share line by line.

    ``terminal`` is its descriptor if it is one; there is no live line on anything else, and it shows no
    progress bar if several workers draw one.
    """

    def __init__(self, output: LineOutput, terminal: int | None) -> None:
        self.output = output
        self.terminal = terminal
        self.has_unlogged_lines = False
        """Whether something was shown that no log file has."""
        self.shows_bars = terminal is not None
        """Whether a progress bar is on the live line."""
        self._in_line_of: Source | None = None
        self._live: dict[Source, Unfinished] = {}
        self._drawn = b""
        """The live line that the terminal shows."""
        self._stale = False
        self._drawn_at = -math.inf

    @property
    def due(self) -> float:
        """When to ``redraw`` (monotonic seconds); NEVER: nothing to draw, or the output is busy."""
        if not self._stale or self._in_line_of or self.output.waiting:
            return NEVER
        return self._drawn_at + _REDRAW_SECONDS

    def show(self, source: Source, text: bytes, *, is_logged: bool = False) -> None:
        """Print ``text`` of ``source``: whole lines, or a piece of one too long to be held back.

        If another source prints before that one is whole, it is broken there.
        """
        if not text:
            return
        self.has_unlogged_lines |= not is_logged
        continues = self._in_line_of == source
        self._make_room(breaking=not continues)
        self.output.write(with_prefix(source.prefix, text, continues=continues))
        self._in_line_of = None if text.endswith(b"\n") else source

    def notice(self, text: bytes) -> None:
        self._make_room(breaking=True)
        self.output.write(text)

    def update(self, source: Source, unfinished: Unfinished) -> None:
        """Take the unfinished line of ``source``; its text is empty if there is none."""
        if self.terminal is None or self._live.get(source, Unfinished()) == unfinished:
            return
        self._live.pop(source, None)
        if unfinished.text:
            self._live[source] = unfinished
        self.shows_bars = len({it.order[0] for it, line in self._live.items() if line.is_bar}) <= 1
        self._stale = True

    def redraw(self, now: float) -> None:
        """Draw the live line, or remove it, if that is due."""
        if self.due > now:
            return
        line = self._live_line()
        if line != self._drawn:
            self.output.write(_CLEAR_LINE + line)
        self._drawn, self._stale, self._drawn_at = line, False, now

    def clear(self) -> None:
        """Remove the live line for good."""
        self._live.clear()
        self._make_room(breaking=False)
        self._stale = False

    def _make_room(self, *, breaking: bool) -> None:
        if self._in_line_of and breaking:
            self.output.write(b"\n")
            self._in_line_of = None
        if self._drawn:
            self.output.write(_CLEAR_LINE)
            self._drawn, self._stale = b"", bool(self._live)

    def _live_line(self) -> bytes:
        live = [it for it, line in self._live.items() if self.shows_bars or not line.is_bar]
        if not live:
            return b""
        source = min(live, key=lambda source: source.order)
        return source.prefix + _cut_coloured(self._live[source].text, self._room(source.prefix))

    def _room(self, prefix: bytes) -> int:
        """Return the columns beside a prefix; the last one stays empty, as terminals wrap there."""
        try:
            columns = os.get_terminal_size(self.terminal or 0).columns
        except OSError:
            columns = 0
        return (columns or _DEFAULT_COLUMNS) - 1 - len(plain(prefix))


def with_prefix(prefix: bytes, text: bytes, *, continues: bool) -> bytes:
    """Return ``text`` with ``prefix`` before each line; ``continues``: not before the first."""
    if not prefix or not text:
        return text
    body = text.replace(b"\n", b"\n" + prefix)
    if text.endswith(b"\n"):
        body = body[: -len(prefix)]
    return body if continues else prefix + body


def coloured(prefix: str, colour: int) -> str:
    """Return ``prefix`` in the colour with this number, without the spaces at its end.

    A prefix with colours of its own stays as it is.
    """
    text = prefix.rstrip(" ")
    if not text or "\x1b" in text:
        return prefix
    return f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m{text}\x1b[0m{prefix[len(text) :]}"


def _cut_coloured(line: bytes, columns: int) -> bytes:
    """Return what of a line fits into ``columns``, with its colours and no other sequences."""
    parts, colours = re.split(COLOURS, line), re.findall(COLOURS, line)
    kept = b""
    for part, colour in zip_longest(parts, colours, fillvalue=b""):
        text = _cut(plain(part), columns)
        columns -= sum(map(_width, text))
        kept += text.encode() + colour
    return kept + _NO_COLOUR if colours else kept


def _cut(text: str, columns: int) -> str:
    """Return what of ``text`` fits into ``columns``, so that the terminal doesn't wrap the line."""
    used = 0
    for index, character in enumerate(text := text.replace("\t", " ")):
        used += _width(character)
        if used > columns:
            return text[:index]
    return text


def _width(character: str) -> int:
    # Only a terminal's live line needs it.
    import unicodedata

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class Screen:
    """Standard output and standard error, wherever lines are shown.

    Args:
        place: where that is.
        open_file: returns an output to a regular file, which is open; the text is its name.

    """

    def __init__(self, place: LauncherOutput, open_file: Callable[[int, str], LineOutput]) -> None:
        self.outputs: list[DescriptorOutput] = []
        """To be flushed whenever they are writable."""
        self._unreported: list[Display] = []
        """Our own outputs, of which no failure was reported."""
        self.stdout = self.stderr = self._own(place, 1, open_file)
        if not os.path.sameopenfile(place.stdout, place.stderr):
            self.stderr = self._own(place, 2, open_file)
        self.displays = tuple(dict.fromkeys((self.stdout, self.stderr)))
        """Both; one if they are the same file."""

    @property
    def waits(self) -> bool:
        """Whether a reader is behind."""
        return any(output.waiting for output in self.outputs)

    def say(self, text: str) -> None:
        """Print lines of the launcher's own."""
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
        """Yield each output that can't be written any more, once."""
        for display in list(self._unreported):
            if display.output.failure is not None:
                self._unreported.remove(display)
                yield display, display.output.failure

    def finish(self) -> None:
        """Take the live line away."""
        for display in self.displays:
            display.clear()

    def _own(
        self, place: LauncherOutput, stream: int, open_file: Callable[[int, str], LineOutput]
    ) -> Display:
        descriptor, name = (
            (place.stdout, "standard output") if stream == 1 else (place.stderr, "standard error")
        )
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Display(open_file(descriptor, name), None)
        output = open_output(descriptor, name)
        self.outputs.append(output)
        terminal = descriptor if os.isatty(descriptor) else None
        display = Display(output, terminal)
        self._unreported.append(display)
        return display
