"""The last lines of a worker: the end of its standard error, and its last line of output. Pure."""

import re

from clusterrun.policy.tracebacks import (
    HARMLESS,
    TRACEBACK,
    beginning_of_traceback,
    plain_lines,
    with_beginning,
)

TAIL_BYTES = 16 << 10
TAIL_LINES = 60

RECENT_BYTES = 4 << 10
"""Kept of a worker's last output; a longer last line loses its beginning."""

_MAX_LINE_LENGTH = 400
"""Characters kept of each line at the beginning of a traceback."""
_HEADER = TRACEBACK.encode()
_HARMLESS = tuple(line.encode() for line in HARMLESS)

_ESCAPES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"  # short sequences
)
_CONTROLS = {code: None for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\n\t"}


class Tail:
    """The last lines of a worker's standard error, for the report, in bounded memory.

    If they are the end of a longer traceback, its beginning is kept as well.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_cut = False
        """Whether the first line of ``_kept`` has lost its beginning."""
        self._beginning: list[str] = []
        """The beginning of the last traceback, if it is before ``_kept``."""

    def add(self, lines: bytes) -> None:
        """Take whole lines, or the next piece of a long one."""
        self._kept += lines
        if len(self._kept) > 4 * TAIL_BYTES:
            self._shorten()

    def text(self) -> str:
        """Return the last lines, at most ``TAIL_LINES`` and about ``TAIL_BYTES``.

        Escape sequences are removed. If the lines are the end of a traceback, its beginning comes first.
        """
        self._shorten()
        lines = bytes(self._kept).splitlines()
        if self._is_cut and len(lines) > 1:
            del lines[0]
        first = max(0, len(lines) - TAIL_LINES)
        if first and _is_harmless(lines[first - 1]):
            first -= 1
        before = self._beginning_within(lines[:first])
        end = plain(b"\n".join(lines[first:])).split("\n")
        return "\n".join(with_beginning(before, end))

    def _shorten(self) -> None:
        surplus = len(self._kept) - TAIL_BYTES
        if surplus <= 0:
            return
        end = self._kept.find(b"\n", surplus - 1) + 1
        # Half a line is better than none.
        self._is_cut = end in (0, len(self._kept))
        end = surplus if self._is_cut else end
        last_line = self._kept.rfind(b"\n", 0, end - 1) + 1
        if _is_harmless(self._kept[last_line:end]):
            end = last_line
        self._beginning = self._beginning_within(bytes(self._kept[:end]).splitlines())
        del self._kept[:end]

    def _beginning_within(self, dropped: list[bytes]) -> list[str]:
        """Return the beginning of the last traceback, if that is before the kept lines."""
        text = b"\n".join(dropped)
        if not self._beginning and _HEADER not in text:
            return []
        lines = [*self._beginning, *plain_lines(plain(text))]
        return [line[:_MAX_LINE_LENGTH] for line in beginning_of_traceback(lines)]


def _is_harmless(line: bytes | bytearray) -> bool:
    """Return whether this line says that the traceback after it is ignored; keep the two together."""
    return line.startswith(_HARMLESS)


class Recent:
    """A worker's last output on both streams, for ``clusterrun status``."""

    def __init__(self) -> None:
        self._last = b""
        self._read_at = 0.0
        self.has_printed = False
        self.lines = 0
        """Number of whole lines printed."""

    def touch(self, now: float) -> None:
        """Note that it has printed something, perhaps less than a line."""
        self._read_at = now
        self.has_printed = True

    def quiet_for(self, now: float) -> float:
        """Return the seconds since it last printed."""
        return max(0.0, now - self._read_at)

    def add(self, lines: bytes) -> None:
        """Take whole lines, or the next piece of a long one."""
        self.lines += lines.count(b"\n")
        if lines and not lines.isspace():
            self._last = lines[-RECENT_BYTES:]

    def last_line(self) -> bytes:
        """Return the last whole line that is not blank, without its newline."""
        lines = self._last.rstrip()
        return lines[lines.rfind(b"\n") + 1 :]


def plain(text: bytes) -> str:
    """Return ``text`` decoded, undecodable bytes replaced, control characters and escapes removed."""
    decoded = text.decode(errors="replace")
    if "\x1b" in decoded:
        decoded = re.sub(_ESCAPES, "", decoded)
    return decoded.translate(_CONTROLS)
