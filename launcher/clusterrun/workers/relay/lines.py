"""Turns a worker's bytes into lines, and finds progress bars, stacks and chosen texts. Pure."""

import os
import re
from collections.abc import Sequence

from clusterrun.loop import NEVER
from clusterrun.policy.stacks import MAX_STACK_CHARACTERS
from clusterrun.workers.relay.recent_output import plain
from clusterrun.workers.relay.screen import MAX_LINE_LENGTH, with_prefix

SECONDS_OF_A_BAR = 10.0
"""Between printed states of a progress bar that is not drawn."""

SECONDS_ON_A_TERMINAL = 2.0
"""The same on a terminal, where several workers draw a bar."""

_UP_AND_DOWN = rb"(?:\x1b\[A){3}\n{3}|(?:\x1b\[A){2}\n{2}|\x1b\[A\n"
"""Returns to the beginning of the same line: tqdm draws nested bars like this."""

_FIRST_STATE = rb"[^\r\n]*"
_OVERWRITTEN = rb"(?m)^[^\n]*\r(?=[^\r\n])"
_RETURNS_BEFORE_NEWLINE = rb"\r+\n"

_MOVEMENTS = (
    rb"\x1b\[[0-?]*[ -/]*[@-ln-~]"
    rb"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    rb"|\x1b[ -/]*[0-Z\\^-~]"  # short sequences
)
"""Control sequences except those that set colours."""

_HEADER = rb"(Current thread|Thread) 0x[0-9a-f]+( .*)?\(most recent call first\):\s*$"
_FRAME = rb"  (File .*, line (\d+|\?\?\?) in |<|\.\.\.|Garbage-collecting)"
_ADDRESS = r"(?m)^((?:Current thread|Thread)) 0x[0-9a-f]+"
_LAUNCHER_FRAME = (
    r'(?m)^  File "(?:.*/fork_server/__main__\.py|<python -m>)", line \d+ in <module>\n?'
)
"""The launcher's frames, which every forked worker has."""

_ONLY_THREAD = r"\A(?:Current thread|Thread)[^\n]*\n"


class LineBuffer:
    r"""Turns the bytes of a stream into lines, however the bytes are cut.

    A progress bar redraws its line after ``\r``; only the last state of such a line is kept.
    """

    def __init__(self, longest: int = MAX_LINE_LENGTH) -> None:
        self._longest = longest
        self._pending = b""
        self._in_long_line = False
        """Whether the pieces of a line that is too long are returned as they come."""
        self._is_redrawn = False

    @property
    def bar(self) -> bytes:
        """The unfinished line if it is a progress bar, which was drawn more than once."""
        return self.unfinished if self._is_redrawn else b""

    @property
    def unfinished(self) -> bytes:
        """The incomplete last line, in its latest state; empty within a line that is too long."""
        return self._pending.rstrip(b"\r")

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return the lines that are complete now, and pieces of a line that is too long."""
        size = self._longest
        if len(data) <= size:
            return self._feed(data)
        return b"".join(self._feed(data[at : at + size]) for at in range(0, len(data), size))

    def finish(self) -> bytes:
        """Return the incomplete line with a newline; b"" if there is none."""
        is_incomplete = self._in_long_line or self.unfinished
        rest = self.unfinished + b"\n" if is_incomplete else b""
        self._pending, self._in_long_line, self._is_redrawn = b"", False, False
        return rest

    def _feed(self, data: bytes) -> bytes:
        if not self._in_long_line:
            return self._whole_lines(data)
        end = data.find(b"\n") + 1
        if not end:
            return data
        self._in_long_line = False
        return data[:end] + self._whole_lines(data[end:])

    def _whole_lines(self, data: bytes) -> bytes:
        text = self._pending + data
        if b"\x1b[A" in text:
            text = re.sub(_UP_AND_DOWN, b"\r", text)
        if len(text) > self._longest and self._begins_too_long(text):
            self._pending, self._in_long_line = b"", True
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
    r"""Return the latest state of an incomplete line; a ``\r`` at its end may still become ``\r\n``."""
    state = re.sub(_OVERWRITTEN, b"", line)
    text = state.rstrip(b"\r")
    return text if len(text) == len(state) else text + b"\r"


def without_movements(text: bytes) -> bytes:
    """Return ``text`` without control sequences except colours."""
    return re.sub(_MOVEMENTS, b"", text) if b"\x1b" in text else text


class StackDumpFilter:
    """While armed, takes faulthandler's stacks out of a stream's lines.

    Other threads may print in between, so each line is judged by itself.
    """

    def __init__(self) -> None:
        self.armed = False
        self.lines = 0
        """Number of faulthandler's lines since it was armed."""
        self.found_own_lines = False
        """Whether the last ``feed`` had complete lines of the worker itself."""
        self._dump = bytearray()
        self._blank = b""

    def arm(self) -> None:
        self.armed, self.lines = True, 0
        self._dump.clear()

    def disarm(self) -> bytes:
        """Stop taking out stacks; return what was held back of the worker's own lines."""
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
        """The stacks of all threads, without what differs between processes."""
        text = re.sub(_LAUNCHER_FRAME, "", plain(bytes(self._dump)))
        text = re.sub(_ADDRESS, r"\1", text).rstrip("\n")
        # The heading of the only thread is omitted.
        return (
            text if text.count(" (most recent call first):") > 1 else re.sub(_ONLY_THREAD, "", text)
        )

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
        if len(self._dump) + len(line) <= MAX_STACK_CHARACTERS:
            self._dump += line


class TextFilter:
    """Selects lines that contain one of ``texts``, and puts the worker's ``prefix`` before each.

    Texts have no line breaks. A line that is too long comes in pieces, each of which counts as a line.
    """

    def __init__(self, prefix: bytes, texts: Sequence[str]) -> None:
        self._prefix = prefix
        self._pattern = re.compile(b"|".join(re.escape(os.fsencode(text)) for text in texts))

    def matching(self, lines: bytes) -> bytes:
        found, end = b"", 0
        while match := self._pattern.search(lines, end):
            begin = lines.rfind(b"\n", end, match.start()) + 1 or end
            end = lines.find(b"\n", match.end()) + 1 or len(lines)
            found += lines[begin:end]
        whole = found if found.endswith(b"\n") or not found else found + b"\n"
        return with_prefix(self._prefix, whole, continues=False)


class ProgressBar:
    """Prints states of one stream's progress bar as lines; its last state is a line anyway.

    ``seconds`` is the time between two lines of one bar.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._printed = b""
        self._state = b""

    @property
    def due(self) -> float:
        """When to call ``update`` even if the bar is not redrawn; NEVER: only when it is redrawn."""
        if self._since is None or self._state == self._printed:
            return NEVER
        return self._since + self._seconds

    def update(self, state: bytes, now: float) -> bytes:
        """Take the bar's state, b"" if there is no bar; return it if it is to be printed now."""
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
