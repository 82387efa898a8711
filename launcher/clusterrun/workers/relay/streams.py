"""One pipe of a worker: its bytes become lines, which go to the places that take them.

pipe -> LineBuffer -> the log file
-> StackDumpFilter -> Tail, Recent
-> TextFilter -> the file of lines with certain texts
-> TracebackBuffer -> the screen
"""

import os

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.descriptor_output import HIGH_WATER_MARK, LOW_WATER_MARK
from clusterrun.loop import NEVER
from clusterrun.workers.relay.equal_tracebacks import TracebackBuffer, Tracebacks
from clusterrun.workers.relay.files import FileOutput, OutputFiles
from clusterrun.workers.relay.kept import Recent, Tail
from clusterrun.workers.relay.lines import (
    SECONDS_OF_A_BAR,
    SECONDS_ON_A_TERMINAL,
    LineBuffer,
    ProgressBar,
    StackDumpFilter,
    TextFilter,
    without_movements,
)
from clusterrun.workers.relay.routes import WorkerOutput
from clusterrun.workers.relay.screen import Display, Source, Unfinished, coloured

READ_BYTES = 64 << 10
"""Bytes of one read: all that a pipe of the default size holds."""

_DRAINED_BYTES = 2 << 20
"""Bytes read at once when a worker has ended: all that the largest pipe holds, but no endless output."""

_ERROR_FILE_BYTES = 256 << 10


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
        self.shown_if_log_fails = to.shown_if_log_fails
        """Shown only if the log file can't be written."""
        self.ended = False
        self.is_active = False
        """What was read last says that the job goes on: it is more than the stacks that were asked for."""
        self.dumps = StackDumpFilter()
        self.log: FileOutput | None = None
        self._filtered: FileOutput | None = None
        if to.log is not None:
            otherwise = to.shown_if_log_fails
            self.log = files.log(to.log, output.label, output.log_dir, print_on_failure=otherwise)
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

        self._tail = None if is_stdout else worker.tail
        self._texts = TextFilter(os.fsencode(output.prefix), to.filters)
        self._tracebacks: TracebackBuffer | None = None
        if not (is_stdout or style.raw):
            self._tracebacks = TracebackBuffer(
                worker.tracebacks,
                output.label,
                self._source.prefix,
                self._show_as,
                lambda: self.shown,
            )

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
        self._congested = waiting > (LOW_WATER_MARK if self._congested else HIGH_WATER_MARK)
        return self._congested

    def show_unwritten(self) -> None:
        """If the log file has failed, show what it lacks and all that follows."""
        if self.log and self.log.failure and self.shown_if_log_fails:
            unwritten = self.log.take_unwritten()
            self.shown, self.shown_if_log_fails = True, False
            self._show(unwritten)

    def show_due(self, now: float) -> None:
        """Show a traceback that is whole by now, and the last state of a progress bar as a line."""
        if self._tracebacks is not None:
            self._tracebacks.look(now)
        bar = self._lines.bar
        if (self.log or self._filtered) and (state := self._logged_bar.look(bar, now)):
            if self.log:
                self.log.write(state + b"\n")
            self._pick(state + b"\n")
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
        # Stacks that were asked for are not a sign that a rank goes on.
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
        if self._tracebacks is not None:
            self._tracebacks.finish()

    def _pass_on(self, lines: bytes) -> None:
        if self.log:
            self.log.write(lines)
        self._feed(self.dumps.feed(lines))
        if self.shown and self._has_live_line:
            text, is_bar = without_movements(self.unfinished), bool(self._lines.bar)
            self.display.update(self._source, Unfinished(text, is_bar))

    def _feed(self, lines: bytes) -> None:
        self._worker.recent.add(lines)
        if self._tail is not None:
            self._tail.add(lines)
        self._pick(lines)
        if not self._is_raw:
            self._show(lines if self._tracebacks is None else self._tracebacks.feed(lines))

    def _pick(self, lines: bytes) -> None:
        if self._filtered:
            self._filtered.write(self._texts.picked(lines))

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
