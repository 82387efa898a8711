"""Connects the workers' pipes with the screen and the log files, as the agent asks."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import convert

from clusterrun.domain.streams import LostOutput
from clusterrun.processes import TimeLimited
from clusterrun.workers.fork_server.channel import Message
from clusterrun.workers.relay.descriptor_output import DescriptorOutput, open_output
from clusterrun.workers.relay.display import Display, Source, coloured
from clusterrun.workers.relay.lines import Progress
from clusterrun.workers.relay.log_files import FileOutput, FilteredFile, LogWriter
from clusterrun.workers.relay.recent import Recent
from clusterrun.workers.relay.routes import Destination, Screen, WorkerOutput
from clusterrun.workers.relay.streams import Stream, Worker
from clusterrun.workers.relay.tail import Tail, plain

_READER_GONE = {errno.EPIPE, errno.EIO}
"""EIO: a terminal that is gone, of which the agent learns by SIGHUP."""


class Switchboard:
    """The workers' streams, the screen and the files.

    Args:
        screen: where lines go and how they look.
        report: sends a message to the agent.
        wake: called by other threads: then there is more to print or to read.
        files: reads error files.
    """

    def __init__(
        self,
        screen: Screen,
        report: Callable[[Message], None],
        wake: Callable[[], None],
        files: TimeLimited,
    ) -> None:
        self.streams: list[Stream] = []
        self.outputs: list[DescriptorOutput] = []
        self.workers: dict[int, Worker] = {}
        self.recent: dict[int, Recent] = {}
        """What workers have printed last, by local rank, those that have ended included."""
        self.sockets: list[Path] = []
        """The agent's, which do not outlive it."""
        self._screen = screen
        self._report = report
        self._files = files
        self._writer = LogWriter(wake)
        self._only_in_files: dict[tuple[int, str], Stream] = {}
        self._raw_source = Source((0, 0), b"")
        self._failed: set[DescriptorOutput] = set()
        self._stdout = self._display(screen.stdout, "standard output")
        shared = os.path.sameopenfile(screen.stdout, screen.stderr)
        self._stderr = self._stdout if shared else self._display(screen.stderr, "standard error")

    @property
    def displays(self) -> set[Display]:
        """Standard output and error; one if they are the same file."""
        return {self._stdout, self._stderr}

    @property
    def screen_waits(self) -> bool:
        """Whether a reader of our output is behind."""
        return any(output.waiting for output in self.outputs)

    @property
    def idle(self) -> bool:
        """Whether all that was read is also written."""
        return not self.screen_waits and self._writer.idle

    def handle(self, message: Message, fds: Sequence[int]) -> None:
        match message["kind"]:
            case "open":
                output = convert(message["output"], WorkerOutput, dec_hook=_path)
                self._open(output, message["streams"], fds)
            case "finish":
                self._report(self._finish(message["key"]))
            case "print":
                self.print(message["text"])
            case "hide_interrupts":
                for stream in self.streams:
                    stream.leave_out_interrupts()
            case "append":
                self._writer.append(Path(message["path"]), message["line"])
            case "remove_at_end":
                self.sockets.append(Path(message["path"]))
            case "link":
                self._writer.link(Path(message["path"]), message["target"])

    def print(self, text: str) -> None:
        self._stderr.notice(text.rstrip("\n").encode(errors="surrogateescape") + b"\n")

    def last_lines(self, now: float) -> list[tuple[int, str, float, int]]:
        """Return of each worker that prints by way of us: last line, its age in seconds, all lines."""
        return [
            (key, self._last_line(key), recent.quiet_for(now), recent.lines)
            for key, recent in self.recent.items()
            if recent.has_printed
        ]

    def _last_line(self, key: int) -> str:
        begun = self.workers[key].unfinished if key in self.workers else b""
        return plain(begun or self.recent[key].last_line()).strip()

    def read_output(self, request: Message) -> list[tuple[int, int, int, str]]:
        """Return what workers have printed since they were read: key, end, bytes left out, text."""
        text, pieces = request["text"].encode(), []
        for key, after in request["after"]:
            if key in self.recent:
                end, left_out, lines = self.recent[key].read(after, request["most"], text)
                if end != after:
                    pieces.append((key, end, left_out, plain(lines)))
        return pieces

    def print_notes(self) -> None:
        """Print the messages of the writing threads, and what they could not write."""
        for note in self._writer.notes():
            self.print(note)
            for stream in self._only_in_files.values():
                stream.show_unwritten()

    def report_failures(self) -> None:
        """Report, once, that an output can't be written any more."""
        for output in self.outputs:
            if output.failure and output not in self._failed:
                self._failed.add(output)
                self._report_failure(output, output.failure)

    def close_ended(self) -> None:
        """Close the pipes of streams that have ended; no selector may watch them any more."""
        for stream in self.streams:
            if stream.ended:
                os.close(stream.descriptor)
        self.streams = [stream for stream in self.streams if not stream.ended]

    def finish(self) -> None:
        """Pass on what can be read now, and remove the live line from the terminal."""
        for stream in self.streams:
            stream.drain()
        for display in self.displays:
            display.clear()

    def losses(self) -> list[LostOutput]:
        """Return the workers' output that could not be written, and is in no other place."""
        shown = [display.output for display in self.displays if _must_be_whole(display)]
        losses = [it.loss() for it in (*shown, *self._writer.logs)]
        return [loss for loss in losses if loss]

    def hurry(self) -> None:
        """Have the writing threads wake us whenever ``idle`` may have become true."""
        self._writer.hurry()

    def _display(self, descriptor: int, name: str) -> Display:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            thread = self._writer.new_thread()
            return Display(FileOutput(thread, lambda: descriptor, name, "the job"), None)
        output = open_output(descriptor, name)
        self.outputs.append(output)
        own_terminal = os.isatty(descriptor) and not self._screen.merged
        return Display(output, descriptor if own_terminal else None)

    def _open(self, output: WorkerOutput, names: Sequence[str], fds: Sequence[int]) -> None:
        tail, recent = Tail(), Recent()
        pipes = zip(names, fds, strict=True)
        streams = {name: self._stream(output, name, fd, tail, recent) for name, fd in pipes}
        opened = tuple(streams.values())
        worker = Worker(opened, tail, output.error_file, streams.get("stderr"))
        self.workers[output.local_rank] = worker
        self.recent[output.local_rank] = recent
        self.streams += opened

    def _stream(
        self, output: WorkerOutput, name: str, descriptor: int, tail: Tail, recent: Recent
    ) -> Stream:
        os.set_blocking(descriptor, False)
        is_stdout = name == "stdout"
        display = self._stdout if is_stdout else self._stderr
        to = output.stdout_to if is_stdout else output.stderr_to
        only_in_file = to.shown_without_log
        log = None
        if to.log is not None:
            log = self._writer.log(to.log, output.label, printed_else=only_in_file)
        stream = Stream(
            descriptor,
            source=self._source(output, display, is_stdout=is_stdout),
            display=display,
            raw=not self._screen.prefix,
            shown=to.shown,
            shown_without_log=only_in_file,
            log=log,
            filtered=self._filtered(output, to),
            tail=None if is_stdout else tail,
            recent=recent,
            progress=Progress(self._screen.progress_interval),
        )
        if only_in_file:
            self._only_in_files[output.local_rank, name] = stream
        return stream

    def _filtered(self, output: WorkerOutput, to: Destination) -> FilteredFile | None:
        if to.filtered is None:
            return None
        file = self._writer.log(to.filtered, output.label)
        return FilteredFile(file, output.prefix.encode(), to.filters)

    def _source(self, output: WorkerOutput, display: Display, *, is_stdout: bool) -> Source:
        if not self._screen.prefix:
            # One source: a line that one stream leaves unfinished is not broken for the other.
            return self._raw_source
        prefix = output.prefix
        if self._screen.colour and display.terminal is not None:
            prefix = coloured(prefix, output.local_rank)
        # Standard error comes first on the live line: progress bars are printed there.
        return Source((output.local_rank, int(is_stdout)), prefix.encode())

    def _finish(self, key: int) -> Message:
        worker = self.workers.pop(key, None)
        tail = error = ""
        if worker is not None:
            for stream in worker.streams:
                stream.drain()
            tail, error = worker.tail.text(), self._files.run(worker.error) or ""
        return {"kind": "output_ended", "key": key, "tail": tail, "error_file": error}

    def _report_failure(self, output: DescriptorOutput, failure: OSError) -> None:
        is_stdout = output is self._stdout.output
        if failure.errno == errno.EPIPE:
            if is_stdout and (self._stdout.is_needed or not self._all_logged()):
                self._report({"kind": "output_closed"})
        elif failure.errno not in _READER_GONE:
            name = "standard output" if is_stdout else "standard error"
            self.print(
                f"clusterrun: {name}: {failure.strerror}; what the workers print there is lost"
            )

    def _all_logged(self) -> bool:
        """Return whether all that goes to standard output is in files as well."""
        return all(
            stream.log for stream in self.streams if stream.display is self._stdout and stream.shown
        )


def _path(_kind: type, text: str) -> Path:
    return Path(text)


def _must_be_whole(display: Display) -> bool:
    """Return whether lost output matters: not if the reader or the terminal is gone."""
    failure = display.output.failure
    return display.is_needed and (failure is None or failure.errno not in _READER_GONE)
