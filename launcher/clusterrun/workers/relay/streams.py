r"""One pipe of a worker: its bytes become lines, which go through filters to the places that take them.

    pipe -> LineBuffer -> the log file
                       -> DumpFilter -> TracebackFilter -> the screen
                                     -> TextFilter -> the file of lines with certain texts
                                     -> Tail, Recent

``LineBuffer`` and the filters are pure.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.descriptor_output import CONGESTED, RELIEVED
from clusterrun.loop import NEVER
from clusterrun.policy.stacks import LONGEST
from clusterrun.workers.relay.equal_tracebacks import TracebackFilter, Tracebacks
from clusterrun.workers.relay.files import FileOutput, OutputFiles
from clusterrun.workers.relay.kept import Recent, Tail, plain
from clusterrun.workers.relay.routes import WorkerOutput
from clusterrun.workers.relay.screen import (
    LONGEST_LINE,
    Display,
    Source,
    Unfinished,
    coloured,
    with_prefix,
)

READ_BYTES = 64 << 10
"""Bytes of one read: all that a pipe of the default size holds."""

_DRAINED_BYTES = 2 << 20
"""Bytes read at once when a worker has ended: all that the largest pipe holds, but no endless output."""

_ERROR_FILE_BYTES = 256 << 10

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

    def __init__(self, longest: int = LONGEST_LINE) -> None:
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


class Filter(Protocol):
    """Takes out, or holds back, some of a stream's lines."""

    def feed(self, lines: bytes) -> bytes:
        """Return what to pass on of whole ``lines``, and of those held back before."""

    def finish(self) -> bytes:
        """Return what is still held back: the stream has ended."""


def without_movements(text: bytes) -> bytes:
    """Return ``text`` with its colours and without what else a terminal would obey."""
    return re.sub(_MOVEMENTS, b"", text) if b"\x1b" in text else text


class DumpFilter:
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
    """Passes on lines that contain one of ``texts``, each with the ``prefix`` of its worker.

    No text has a line break in it. Of a line that comes in pieces, those pieces that contain a text
    are passed on, as lines.
    """

    def __init__(self, prefix: bytes, texts: Sequence[str]) -> None:
        self._prefix = prefix
        self._pattern = re.compile(b"|".join(re.escape(os.fsencode(text)) for text in texts))

    def feed(self, lines: bytes) -> bytes:
        found, end = b"", 0
        while match := self._pattern.search(lines, end):
            begin = lines.rfind(b"\n", end, match.start()) + 1 or end
            end = lines.find(b"\n", match.end()) + 1 or len(lines)
            found += lines[begin:end]
        whole = found if found.endswith(b"\n") or not found else found + b"\n"
        return with_prefix(self._prefix, whole, continues=False)

    def finish(self) -> bytes:
        return b""


class Sink:
    """A place that takes a stream's lines, behind filters of its own."""

    def __init__(self, take: Callable[[bytes], object], *filters: Filter) -> None:
        self._take = take
        self._filters = filters

    def feed(self, lines: bytes) -> None:
        for each in self._filters:
            lines = each.feed(lines)
        self._take(lines)

    def finish(self) -> None:
        rest = b""
        for each in self._filters:
            rest = each.feed(rest) + each.finish()
        self._take(rest)


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


class RelayedWorker(Struct, eq=False):
    """One worker: where its output goes, and what is kept of it."""

    output: WorkerOutput
    tracebacks: Tracebacks
    """Of all workers of this node."""
    tail: Tail = field(default_factory=Tail)
    """Of its standard error."""
    recent: Recent = field(default_factory=Recent)
    """Of both streams."""
    streams: "dict[str, Stream]" = field(default_factory=dict)
    """By "stdout" and "stderr"; neither where it is the terminal's own."""
    has_ended: bool = False

    @property
    def unfinished(self) -> bytes:
        """The line that it has begun; b"" if there is none."""
        begun = (stream.unfinished for stream in self.streams.values())
        return next(filter(None, begun), b"")

    @property
    def is_shown(self) -> bool:
        """Whether its standard error is on the screen."""
        stream = self.streams.get("stderr")
        return stream is None or stream.shown

    def error(self) -> str:
        """Return what it wrote to its TORCHELASTIC_ERROR_FILE, "" if nothing."""
        if self.output.error_file is None:
            return ""
        try:
            # A worker may put anything there, also a FIFO, which would block.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self.output.error_file, flags), "rb") as file:
                return (file.read(_ERROR_FILE_BYTES) or b"").decode(errors="replace")
        except OSError:
            return ""


class Stream:
    """The standard output or error of one worker.

    Args:
        descriptor: the read end of its pipe.
        name: "stdout" or "stderr".
        worker: whose it is.
        display: where it is shown.
        files: has the files that it goes to.

    """

    def __init__(
        self,
        descriptor: int,
        name: str,
        worker: RelayedWorker,
        display: Display,
        files: OutputFiles,
    ) -> None:
        os.set_blocking(descriptor, False)
        is_stdout, output, style = name == "stdout", worker.output, worker.output.style
        to = output.stdout_to if is_stdout else output.stderr_to
        self.descriptor = descriptor
        self.display = display
        self.shown = to.shown
        self.shown_without_log = to.shown_without_log
        """Shown only if the log file can't be written."""
        self.ended = False
        self.is_active = False
        """What was read last says that the job goes on: it is more than the stacks that were asked for."""
        self.dumps = DumpFilter()
        self.log: FileOutput | None = None
        self._filtered: FileOutput | None = None
        if to.log is not None:
            otherwise = to.shown_without_log
            self.log = files.log(to.log, output.label, output.log_dir, printed_else=otherwise)
        if to.filtered is not None:
            self._filtered = files.log(to.filtered, output.label, output.log_dir)
        on_terminal = display.terminal is not None and not style.merged
        self._is_raw = style.raw
        self._has_live_line = on_terminal and not style.raw
        self._congested = False
        self._lines = LineBuffer()
        self._logged_bar = ProgressBar(SECONDS_OF_A_BAR)
        self._shown_bar = ProgressBar(
            SECONDS_ON_A_TERMINAL if self._has_live_line else SECONDS_OF_A_BAR
        )
        self._worker = worker

        prefix = output.prefix
        if style.colour and on_terminal:
            prefix = coloured(prefix, output.local_rank)
        # Standard error comes first on the live line: progress bars are printed there.
        self._source = Source((output.local_rank, int(is_stdout)), os.fsencode(prefix))
        if style.raw:
            # One source: a line that one stream leaves unfinished is not broken for the other.
            self._source = Source((0, 0), b"")

        self._sinks = [Sink(worker.recent.add)]
        if not is_stdout:
            self._sinks.append(Sink(worker.tail.add))
        self._to_filtered: Sink | None = None
        if self._filtered is not None:
            texts = TextFilter(os.fsencode(output.prefix), to.filters)
            self._to_filtered = Sink(self._filtered.write, texts)
            self._sinks.append(self._to_filtered)
        self._tracebacks: TracebackFilter | None = None
        filters: list[Filter] = []
        if not (is_stdout or style.raw):
            self._tracebacks = TracebackFilter(
                worker.tracebacks,
                output.label,
                self._source.prefix,
                self._show_as,
                lambda: self.shown,
            )
            filters.append(self._tracebacks)
        if not style.raw:
            self._sinks.append(Sink(self._show, *filters))

    @property
    def unfinished(self) -> bytes:
        """The line that it has begun, in its last state: a progress bar, for instance."""
        return self._lines.unfinished

    @property
    def due(self) -> float:
        """When to ``show_due``."""
        held = NEVER if self._tracebacks is None else self._tracebacks.due
        return min(held, self._logged_bar.due, self._shown_bar.due)

    def congested(self) -> bool:
        """Return whether too much waits for the screen or a file to read more."""
        waiting = max(
            self.display.output.waiting if self.shown else 0,
            self.log.waiting if self.log else 0,
            self._filtered.waiting if self._filtered else 0,
        )
        self._congested = waiting > (RELIEVED if self._congested else CONGESTED)
        return self._congested

    def show_unwritten(self) -> None:
        """If the log file has failed, show what it lacks and all that follows."""
        if self.log and self.log.failure and self.shown_without_log:
            unwritten = self.log.take_back()
            self.shown, self.shown_without_log = True, False
            self._show(unwritten)

    def show_due(self, now: float) -> None:
        """Show a traceback that is whole by now, and the last state of a progress bar as a line."""
        if self._tracebacks is not None:
            self._tracebacks.look(now)
        bar = self._lines.bar
        if (self.log or self._to_filtered) and (state := self._logged_bar.look(bar, now)):
            if self.log:
                self.log.write(state + b"\n")
            if self._to_filtered:
                self._to_filtered.feed(state + b"\n")
        # The terminal, ours or the reader's, shows it already.
        is_drawn = self._is_raw or (self._has_live_line and self.display.shows_bars)
        if state := self._shown_bar.look(b"" if is_drawn else bar, now):
            self._show(state + b"\n")

    def pump(self, now: float) -> int:
        """Read once, pass on what was read, and return its length in bytes."""
        if self.ended:
            return 0
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.end()
            return 0
        if self._is_raw:
            self._show(data)
        self._pass_on(self._lines.feed(data))
        # Stacks that were asked for are no sign that a rank goes on.
        has_own_lines = self.dumps.found_own_lines or not self.dumps.armed
        self.is_active = has_own_lines and self._worker.output.is_watched
        if has_own_lines:
            self._worker.recent.touch(now)
        return len(data)

    def drain(self, now: float) -> None:
        """Pass on what can be read now, the unfinished line included.

        The pipe stays open: what the worker has left running may still print.
        """
        total = 0
        while total < _DRAINED_BYTES and (count := self.pump(now)):
            total += count
        if not self.ended:
            self._pass_on_unfinished()

    def close(self, now: float) -> None:
        """Pass on what can be read now, then end, even if another process still holds the pipe."""
        self.drain(now)
        self.end()

    def end(self) -> None:
        """Pass on the unfinished last line, and close the files."""
        if self.ended:
            return
        self.ended = True
        self._pass_on_unfinished()
        for file in (self.log, self._filtered):
            if file:
                file.close()

    def end_dumps(self) -> None:
        """Take out no more stacks."""
        self._feed(self.dumps.disarm())

    def _pass_on_unfinished(self) -> None:
        self._pass_on(self._lines.finish())
        self._feed(self.dumps.finish())
        for sink in self._sinks:
            sink.finish()

    def _pass_on(self, lines: bytes) -> None:
        if self.log:
            self.log.write(lines)
        self._feed(self.dumps.feed(lines))
        if self.shown and self._has_live_line:
            text, is_bar = without_movements(self.unfinished), bool(self._lines.bar)
            self.display.update(self._source, Unfinished(text, is_bar))

    def _feed(self, lines: bytes) -> None:
        for sink in self._sinks:
            sink.feed(lines)

    def _show(self, text: bytes) -> None:
        self._print(self._source, text)

    def _show_as(self, prefix: bytes, text: bytes) -> None:
        """Show lines of a traceback, or that several workers have printed it."""
        self._print(replace(self._source, prefix=prefix), text)

    def _print(self, source: Source, text: bytes) -> None:
        if self.shown:
            # All ranks share the terminal's screen.
            lines = without_movements(text) if self._has_live_line else text
            self.display.show(source, lines, is_logged=self.log is not None)
