"""The launcher's stdout and stderr: whole lines of many workers, and one live line on a terminal."""

import math
import os
import re
from itertools import zip_longest

from msgspec import Struct

from clusterrun.workers.relay.descriptor_output import Output
from clusterrun.workers.relay.lines import with_prefix
from clusterrun.workers.relay.screen_filters import COLOURS
from clusterrun.workers.relay.tail import plain

_CLEAR_LINE = b"\r\x1b[K"
_NO_COLOUR = b"\x1b[0m"
_REDRAW_SECONDS = 0.1
_DEFAULT_COLUMNS = 80
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of the prefixes, by turns; red is for errors."""


class Source(Struct, frozen=True):
    """A stream that prints; the live line belongs to the one with the lowest ``order``."""

    order: tuple[int, int]
    prefix: bytes


class Display:
    """One terminal, pipe or file, which all sources share line by line.

    ``terminal`` is its descriptor if it is one; there is no live line on anything else.
    """

    def __init__(self, output: Output, terminal: int | None) -> None:
        self.output = output
        self.terminal = terminal
        self.is_needed = False
        """Whether something was shown that no log file has."""
        self._in_line_of: Source | None = None
        self._live: dict[Source, bytes] = {}
        self._drawn = False
        self._stale = False
        self._drawn_at = -math.inf

    @property
    def due(self) -> float | None:
        """When to ``redraw`` (monotonic seconds); None: nothing to draw, or the output is busy."""
        if not self._stale or self._in_line_of or self.output.waiting:
            return None
        return self._drawn_at + _REDRAW_SECONDS

    def show(self, source: Source, text: bytes, *, is_logged: bool = False) -> None:
        """Print ``text`` of ``source``: whole lines, or a piece of one too long to be held back.

        If another source prints before that one is whole, it is broken there.
        """
        if not text:
            return
        self.is_needed |= not is_logged
        continues = self._in_line_of is source
        self._make_room(breaking=not continues)
        self.output.write(with_prefix(source.prefix, text, continues=continues))
        self._in_line_of = None if text.endswith(b"\n") else source

    def notice(self, text: bytes) -> None:
        self._make_room(breaking=True)
        self.output.write(text)

    def update(self, source: Source, unfinished: bytes) -> None:
        """Take the last state of the unfinished line of ``source``; empty if there is none."""
        if self.terminal is None or self._live.get(source, b"") == unfinished:
            return
        self._live.pop(source, None)
        if unfinished:
            self._live[source] = unfinished
        self._stale = True

    def redraw(self, now: float) -> None:
        """Draw the live line, or remove it, if that is due."""
        if self.due is None or self.due > now:
            return
        line = self._live_line()
        if line or self._drawn:
            self.output.write(_CLEAR_LINE + line)
        self._drawn, self._stale, self._drawn_at = bool(line), False, now

    def clear(self) -> None:
        self._live.clear()
        self._make_room(breaking=False)
        self._stale = False

    def _make_room(self, *, breaking: bool) -> None:
        if self._in_line_of and breaking:
            self.output.write(b"\n")
            self._in_line_of = None
        if self._drawn:
            self.output.write(_CLEAR_LINE)
            self._drawn, self._stale = False, bool(self._live)

    def _live_line(self) -> bytes:
        if not self._live or self.terminal is None:
            return b""
        source = min(self._live, key=lambda source: source.order)
        room = _columns(self.terminal) - 1 - len(plain(source.prefix))
        return source.prefix + _cut_coloured(self._live[source], room)


def coloured(prefix: str, colour: int) -> str:
    """Return ``prefix`` in the colour with this number, without the spaces at its end.

    A prefix with colours of its own stays as it is.
    """
    text = prefix.rstrip(" ")
    if not text or "\x1b" in text:
        return prefix
    return f"\x1b[{_COLOURS[colour % len(_COLOURS)]}m{text}\x1b[0m{prefix[len(text) :]}"


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or _DEFAULT_COLUMNS
    except OSError:
        return _DEFAULT_COLUMNS


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
