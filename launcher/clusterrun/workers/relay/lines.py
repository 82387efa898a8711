"""Lines of a worker's bytes, and what is looked for in them. Pure."""

import os
import re
from collections.abc import Sequence

from clusterrun.loop import NEVER
from clusterrun.policy.stacks import LONGEST
from clusterrun.workers.relay.kept import plain
from clusterrun.workers.relay.screen import MAX_LINE_LENGTH, with_prefix

SECONDS_OF_A_BAR = 10.0
"""Between lines with the state of a progress bar that is not drawn."""

SECONDS_ON_A_TERMINAL = 2.0
"""As above, where several workers draw one."""

_UP_AND_DOWN = rb"(?:\x1b\[A){3}\n{3}|(?:\x1b\[A){2}\n{2}|\x1b\[A\n"
"""Back to the beginning of the same line: tqdm draws a bar below another like this."""

_FIRST_STATE = rb"[^\r\n]*"
_OVERWRITTEN = rb"(?m)^[^\n]*\r(?=[^\r\n])"
_RETURNS_BEFORE_NEWLINE = rb"\r+\n"

_MOVEMENTS = (
    rb"\x1b\[[0-?]*[ -/]*[@-ln-~]"
    rb"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    rb"|\x1b[ -/]*[0-Z\\^-~]"  # the short ones
)
"""Control sequences, but for those that set colours."""

_HEADER = rb"(Current thread|Thread) 0x[0-9a-f]+( .*)?\(most recent call first\):\s*$"
_FRAME = rb"  (File .*, line (\d+|\?\?\?) in |<|\.\.\.|Garbage-collecting)"
_ADDRESS = r"(?m)^((?:Current thread|Thread)) 0x[0-9a-f]+"
_BENEATH_THE_SCRIPT = (
    r'(?m)^  File "(?:.*/fork_server/__main__\.py|<python -m>)", line \d+ in <module>\n?'
)
"""The launcher's own frames, which every forked worker has."""

_ALONE = r"\A(?:Current thread|Thread)[^\n]*\n"


class LineBuffer:
    r"""Turns the bytes of a stream into lines, whatever they are and however they are cut.

    A progress bar redraws its line after ``\r``; of such a line only the last state is kept.
    """

    def __init__(self, longest: int = MAX_LINE_LENGTH) -> None:
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


def _last_state(line: bytes) -> bytes:
    r"""Return what counts of an unfinished line; a ``\r`` at its end may still become ``\r\n``."""
    state = re.sub(_OVERWRITTEN, b"", line)
    text = state.rstrip(b"\r")
    return text if len(text) == len(state) else text + b"\r"


def without_movements(text: bytes) -> bytes:
    """Return ``text`` with its colours and without what else a terminal would obey."""
    return re.sub(_MOVEMENTS, b"", text) if b"\x1b" in text else text


class StackDumpFilter:
    """Takes the stacks that faulthandler prints out of a stream's lines, while it is armed.

    Other threads may print in between, so that each line is judged by itself.
    """

    def __init__(self) -> None:
        self.armed = False
        self.lines = 0
        """Number of faulthandler's lines since it was armed."""
        self.found_own_lines = False
        """Whether what was fed last had whole lines of the worker's own."""
        self._dump = bytearray()
        self._blank = b""

    def arm(self) -> None:
        self.armed, self.lines = True, 0
        self._dump.clear()

    def disarm(self) -> bytes:
        """Take out no more; return what was held back and belongs to the worker's own lines."""
        self.armed = False
        return self.finish()

    def feed(self, lines: bytes) -> bytes:
        if not self.armed:
            return lines
        self.found_own_lines = False
        return b"".join(self._feed_line(line) for line in lines.splitlines(keepends=True))

    def finish(self) -> bytes:
        blank, self._blank = self._blank, b""
        return blank

    @property
    def stack(self) -> str:
        """What has been taken out: the stacks of all threads, without what differs by process."""
        text = re.sub(_BENEATH_THE_SCRIPT, "", plain(bytes(self._dump)))
        text = re.sub(_ADDRESS, r"\1", text).rstrip("\n")
        # The name of the only thread is left out.
        return text if text.count(" (most recent call first):") > 1 else re.sub(_ALONE, "", text)

    def _feed_line(self, line: bytes) -> bytes:
        before = self.finish()
        if header := re.search(_HEADER, line):
            # An empty line separates threads; a progress bar may stand before the first one.
            self._take(before + line[header.start() :])
            return line[: header.start()] and line[: header.start()] + b"\n"
        if self.lines and re.match(_FRAME, line):
            self._take(line)
            return before
        if self.lines and not before and line == b"\n":
            self._blank = line
            return b""
        self.found_own_lines = True
        return before + line

    def _take(self, line: bytes) -> None:
        self.lines += 1
        if len(self._dump) + len(line) <= LONGEST:
            self._dump += line


class TextFilter:
    """Picks lines that contain one of ``texts``, each with the ``prefix`` of its worker.

    No text has a line break in it. Of a line that comes in pieces, those pieces that contain a text
    are picked, as lines.
    """

    def __init__(self, prefix: bytes, texts: Sequence[str]) -> None:
        self._prefix = prefix
        self._pattern = re.compile(b"|".join(re.escape(os.fsencode(text)) for text in texts))

    def picked(self, lines: bytes) -> bytes:
        found, end = b"", 0
        while match := self._pattern.search(lines, end):
            begin = lines.rfind(b"\n", end, match.start()) + 1 or end
            end = lines.find(b"\n", match.end()) + 1 or len(lines)
            found += lines[begin:end]
        whole = found if found.endswith(b"\n") or not found else found + b"\n"
        return with_prefix(self._prefix, whole, continues=False)


class ProgressBar:
    """The bar of one stream, if it draws one; its last state is a line anyway."""

    def __init__(self, seconds: float) -> None:
        """Take the seconds between two lines of one bar."""
        self._seconds = seconds
        self._since: float | None = None
        self._printed = b""
        self._state = b""

    @property
    def due(self) -> float:
        """When to ``look`` at a bar that is not redrawn meanwhile; NEVER: not before it is redrawn."""
        if self._since is None or self._state == self._printed:
            return NEVER
        return self._since + self._seconds

    def look(self, state: bytes, now: float) -> bytes:
        """Take the bar's state, b"" if there is no bar; return it if it is due."""
        if not state.strip():
            self._since, self._state, self._printed = None, b"", b""
            return b""
        if self._since is None:
            self._since = now
        self._state = state
        if now < self.due:
            return b""
        self._since, self._printed = now, state
        return state
