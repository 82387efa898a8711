"""One pipe of a worker: its bytes become lines, which go to several outputs.

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
from clusterrun.workers.relay.duplicate_tracebacks import TracebackBuffer, Tracebacks
from clusterrun.workers.relay.files import FileOutput, OutputFiles
from clusterrun.workers.relay.lines import (
    SECONDS_OF_A_BAR,
    SECONDS_ON_A_TERMINAL,
    LineBuffer,
    ProgressBar,
    StackDumpFilter,
    TextFilter,
    without_movements,
)
from clusterrun.workers.relay.recent_output import Recent, Tail
from clusterrun.workers.relay.routes import WorkerOutput
from clusterrun.workers.relay.screen import Display, Source, Unfinished, coloured

READ_BYTES = 64 << 10
"""Bytes of one read; a pipe of the default size holds as much."""

_DRAINED_BYTES = 2 << 20
"""Bytes read at once when a worker has ended; the largest pipe holds less."""

_ERROR_FILE_BYTES = 256 << 10


class RelayedWorker(Struct, eq=False):
    """One worker: where its output goes, and its last lines."""

    output: WorkerOutput
    tracebacks: Tracebacks
    """The tracebacks of all workers of this node."""
    tail: Tail = field(default_factory=Tail)
    """The end of its standard error."""
    recent: Recent = field(default_factory=Recent)
    """The last output on both streams."""
    streams: "dict[str, Stream]" = field(default_factory=dict)
    """By "stdout" and "stderr", without streams that the worker writes to the terminal itself."""
    has_ended: bool = False

    @property
    def unfinished(self) -> bytes:
        """Its incomplete line; b"" if there is none."""
        begun = (stream.unfinished for stream in self.streams.values())
        return next(filter(None, begun), b"")

    @property
    def is_shown(self) -> bool:
        """Whether its standard error is printed."""
        stream = self.streams.get("stderr")
        return stream is None or stream.shown

    def error(self) -> str:
        """Return the content of its TORCHELASTIC_ERROR_FILE; "" if there is none."""
        if self.output.error_file is None:
            return ""
        try:
            # Non-blocking, because a worker may put anything there, even a FIFO.
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
        worker: the worker that prints.
        display: where it is shown.
        files: opens its log files.

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
        """Whether it is shown once the log file can't be written."""
        self.ended = False
        self.is_active = False
        """Whether the last read shows that the job makes progress: it is more than requested stacks."""
        self.dumps = StackDumpFilter()
        self.log: FileOutput | None = None
        self._filtered: FileOutput | None = None
        if to.log is not None:
            self.log = files.log(
                to.log, output.label, output.log_dir, print_on_failure=to.shown_if_log_fails
            )
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
        # Standard error has priority on the live line, because progress bars are printed there.
        self._source = Source((output.local_rank, int(is_stdout)), os.fsencode(prefix))
        if style.raw:
            # Both streams are one source: the one may continue the other's incomplete line.
            self._source = Source((0, 0), b"")

        self._tail = None if is_stdout else worker.tail
        self._texts = TextFilter(os.fsencode(output.prefix), to.filters)
        self._tracebacks: TracebackBuffer | None = None
        if not (is_stdout or style.raw):
            self._tracebacks = TracebackBuffer(
                worker.tracebacks,
                output.label,
                self._source.prefix,
                self._show,
                lambda: self.shown,
            )

    @property
    def unfinished(self) -> bytes:
        """The incomplete line in its latest state, for example a progress bar."""
        return self._lines.unfinished

    @property
    def due(self) -> float:
        """When to ``show_due``."""
        traceback_due = NEVER if self._tracebacks is None else self._tracebacks.due
        return min(traceback_due, self._logged_bar.due, self._shown_bar.due)

    def congested(self) -> bool:
        """Return whether too many bytes wait for the screen or a file to read more."""
        waiting = max(
            self.display.output.waiting if self.shown else 0,
            self.log.waiting if self.log else 0,
            self._filtered.waiting if self._filtered else 0,
        )
        self._congested = waiting > (LOW_WATER_MARK if self._congested else HIGH_WATER_MARK)
        return self._congested

    def show_unwritten(self) -> None:
        """If the log file has failed, show what it lacks and everything that follows."""
        if self.log and self.log.failure and self.shown_if_log_fails:
            unwritten = self.log.take_unwritten()
            self.shown, self.shown_if_log_fails = True, False
            self._show(unwritten)

    def show_due(self, now: float) -> None:
        """Show a complete traceback, and the latest state of a progress bar as a line, if due."""
        if self._tracebacks is not None:
            self._tracebacks.update(now)
        bar = self._lines.bar
        if (self.log or self._filtered) and (state := self._logged_bar.update(bar, now)):
            if self.log:
                self.log.write(state + b"\n")
            self._write_filtered(state + b"\n")
        # A terminal, the launcher's or the reader's, draws the bar itself.
        is_drawn = self._is_raw or (self._has_live_line and self.display.shows_bars)
        if state := self._shown_bar.update(b"" if is_drawn else bar, now):
            self._show(state + b"\n")

    def read(self, now: float) -> int:
        """Read once, distribute the bytes, and return their number."""
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
        self._distribute(self._lines.feed(data))
        # Requested stacks don't show that a rank makes progress.
        has_own_lines = self.dumps.found_own_lines or not self.dumps.armed
        self.is_active = has_own_lines and self._worker.output.is_watched
        if has_own_lines:
            self._worker.recent.touch(now)
        return len(data)

    def drain(self, now: float) -> None:
        """Read all that is in the pipe, and finish the incomplete line.

        The pipe stays open, because the worker's descendants may still print.
        """
        total = 0
        while total < _DRAINED_BYTES and (count := self.read(now)):
            total += count
        if not self.ended:
            self._finish_line()

    def close(self, now: float) -> None:
        """Drain the pipe and end, even if another process still has the pipe open."""
        self.drain(now)
        self.end()

    def end(self) -> None:
        """Finish the incomplete last line, and close the files."""
        if self.ended:
            return
        self.ended = True
        self._finish_line()
        for file in (self.log, self._filtered):
            if file:
                file.close()

    def end_dumps(self) -> None:
        """Stop taking out stacks."""
        self._distribute_own(self.dumps.disarm())

    def _finish_line(self) -> None:
        self._distribute(self._lines.finish())
        self._distribute_own(self.dumps.finish())
        if self._tracebacks is not None:
            self._tracebacks.flush()

    def _distribute(self, lines: bytes) -> None:
        if self.log:
            self.log.write(lines)
        self._distribute_own(self.dumps.feed(lines))
        if self.shown and self._has_live_line:
            text, is_bar = without_movements(self.unfinished), bool(self._lines.bar)
            self.display.update(self._source, Unfinished(text, is_bar))

    def _distribute_own(self, lines: bytes) -> None:
        """Distribute lines of the worker itself, not of requested stacks."""
        self._worker.recent.add(lines)
        if self._tail is not None:
            self._tail.add(lines)
        self._write_filtered(lines)
        if not self._is_raw:
            self._show(lines if self._tracebacks is None else self._tracebacks.feed(lines))

    def _write_filtered(self, lines: bytes) -> None:
        if self._filtered:
            self._filtered.write(self._texts.matching(lines))

    def _show(self, text: bytes, prefix: bytes | None = None) -> None:
        if self.shown:
            source = self._source if prefix is None else replace(self._source, prefix=prefix)
            # All ranks share the terminal's screen.
            lines = without_movements(text) if self._has_live_line else text
            self.display.show(source, lines, is_logged=self.log is not None)
