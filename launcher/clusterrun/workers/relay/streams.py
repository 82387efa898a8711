"""The output of one worker: from its pipes to the screen, its log files and its tail."""

import os
from pathlib import Path

from msgspec import Struct, field

from clusterrun.workers.relay.descriptor_output import CONGESTED, RELIEVED
from clusterrun.workers.relay.display import Display, Source
from clusterrun.workers.relay.lines import LineBuffer, Progress
from clusterrun.workers.relay.log_files import FileOutput, FilteredFile
from clusterrun.workers.relay.recent import Recent
from clusterrun.workers.relay.screen_filters import (
    InterruptFilter,
    RedrawFilter,
    without_movements,
)
from clusterrun.workers.relay.stack_dumps import DumpFilter
from clusterrun.workers.relay.tail import Tail

READ_BYTES = 64 << 10
"""Bytes of one read: all that a pipe of the default size holds."""

_DRAINED_BYTES = 2 << 20
"""Bytes read at the end: all that the largest pipe holds, but no endless output."""
_ERROR_FILE_BYTES = 256 << 10


class Stream(Struct, eq=False):
    """The standard output or error of one worker.

    ``raw``: the screen gets the bytes as they come, not only whole lines.
    """

    descriptor: int
    source: Source
    display: Display
    raw: bool
    shown: bool
    shown_without_log: bool
    """Shown only if the log file can't be written."""
    log: FileOutput | None
    filtered: FilteredFile | None
    """Gets the shown lines that contain certain texts."""
    tail: Tail | None
    recent: Recent
    """Of both streams of the worker."""
    progress: Progress
    ended: bool = False
    is_active: bool = False
    """What was read last is more than the stacks that the agent asked for."""
    dumps: DumpFilter = field(default_factory=DumpFilter)
    _congested: bool = False
    _lines: LineBuffer = field(default_factory=LineBuffer)
    _interrupts: InterruptFilter = field(default_factory=InterruptFilter)
    _redraws: RedrawFilter = field(default_factory=RedrawFilter)

    @property
    def unfinished(self) -> bytes:
        """The line that it has begun, in its last state: a progress bar, for instance."""
        return self._lines.unfinished

    def congested(self) -> bool:
        """Return whether too much waits for the screen or a file to read more."""
        waiting = max(
            self.display.output.waiting if self.shown else 0,
            self.log.waiting if self.log else 0,
            self.filtered.output.waiting if self.filtered else 0,
        )
        self._congested = waiting > (RELIEVED if self._congested else CONGESTED)
        return self._congested

    def show_unwritten(self) -> None:
        """If the log file has failed, show what it lacks and all that follows."""
        if self.log and self.log.failure and self.shown_without_log:
            unwritten = self.log.take_back()
            self.shown, self.shown_without_log = True, False
            self._show(unwritten)

    def show_progress(self, now: float) -> None:
        """Write the last state of a progress bar as a line, if that is due."""
        drawn = self.display.terminal is not None or self.raw
        if state := self.progress.look(self._lines.bar if self.log or not drawn else b"", now):
            line = state + b"\n"
            if self.log:
                self.log.write(line)
            if not drawn:
                self._show(line)
                if self.filtered:
                    self.filtered.add(line)

    def pump(self) -> int:
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
        self._pass_on(data)
        return len(data)

    def _pass_on(self, data: bytes) -> None:
        lines = self._lines.feed(data)
        own = self.dumps.feed(lines)
        self.is_active = self.dumps.found_own_lines or not self.dumps.armed
        if self.raw:
            self._show(data)
            self._keep(lines, own)
        else:
            self._show_lines(lines, own)

    def end_dumps(self) -> None:
        rest = self.dumps.disarm()
        if not self.raw:
            self._show(rest)

    def leave_out_interrupts(self) -> None:
        """Show no more tracebacks that end in KeyboardInterrupt: the user pressed Ctrl-C."""
        self._interrupts.armed = True

    def drain(self) -> None:
        """Pass on what can be read now, then end, even if another process still holds the pipe."""
        total = 0
        while total < _DRAINED_BYTES and (count := self.pump()):
            total += count
        self.end()

    def end(self) -> None:
        """Write the unfinished last line, and close the files."""
        if self.ended:
            return
        self.ended = True
        rest = self._lines.finish()
        own = self.dumps.feed(rest)
        if self.raw:
            self._keep(rest, own)
        else:
            self._show_lines(rest, own)
            self._show(self._redraws.finish() + self._interrupts.finish())
        if self.log:
            self.log.close()
        if self.filtered:
            self.filtered.output.close()

    def _show_lines(self, lines: bytes, own: bytes) -> None:
        shown = self._interrupts.feed(own)
        if self.display.terminal is not None:
            shown = self._redraws.feed(shown)
            shown += b"" if self._lines.unfinished else self._redraws.finish()
        self._show(shown)
        if self.shown:
            self.display.update(self.source, without_movements(self._lines.unfinished))
        self._keep(lines, own)

    def _show(self, text: bytes) -> None:
        if self.shown:
            self.display.show(self.source, text, is_logged=self.log is not None)

    def _keep(self, lines: bytes, own: bytes) -> None:
        if self.log:
            self.log.write(lines)
        if self.filtered:
            self.filtered.add(own)
        if self.tail:
            self.tail.add(own)
        self.recent.add(own)


class Worker(Struct, eq=False):
    """The streams of one worker, and what its report needs."""

    streams: tuple[Stream, ...]
    tail: Tail
    error_file: Path | None
    stderr: Stream | None
    """None where it is the terminal's own."""

    @property
    def unfinished(self) -> bytes:
        """The line that it has begun; b"" if there is none."""
        return next((stream.unfinished for stream in self.streams if stream.unfinished), b"")

    @property
    def is_shown(self) -> bool:
        return self.stderr is None or self.stderr.shown

    def error(self) -> str:
        """Return what it wrote to its TORCHELASTIC_ERROR_FILE, "" if nothing."""
        if self.error_file is None:
            return ""
        try:
            # A worker may put anything there, also a FIFO, which would block.
            descriptor = os.open(self.error_file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                return (file.read(_ERROR_FILE_BYTES) or b"").decode(errors="replace")
        except OSError:
            return ""
