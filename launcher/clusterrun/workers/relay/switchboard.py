"""Connects the workers' pipes with the screen and the log files, as the agent asks."""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from clusterrun.domain.lost_output import LostOutput
from clusterrun.workers.channel import Message
from clusterrun.workers.relay.destinations import Screen
from clusterrun.workers.relay.outputs.descriptor_output import DescriptorOutput, open_output
from clusterrun.workers.relay.outputs.display import Display, Source, coloured
from clusterrun.workers.relay.outputs.log_files import FileOutput
from clusterrun.workers.relay.outputs.log_writer import FilteredFile, LogWriter
from clusterrun.workers.relay.streams import Stream, Worker
from clusterrun.workers.relay.text.lines import Progress
from clusterrun.workers.relay.text.tail import Tail
from clusterrun.workers.time_limited import TimeLimited

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
                self._open(message, fds)
            case "finish":
                self._report(self._finish(message["key"]))
            case "print":
                self.print(message["text"])
            case "hide_interrupts":
                for stream in self.streams:
                    stream.leave_out_interrupts()
            case "append":
                self._writer.append(message["path"], message["line"])
            case "link":
                self._writer.link(message["path"], message["target"])

    def print(self, text: str) -> None:
        self._stderr.notice(text.rstrip("\n").encode(errors="surrogateescape") + b"\n")

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

    def _open(self, message: Message, fds: Sequence[int]) -> None:
        tail = Tail()
        pipes = zip(message["streams"], fds, strict=True)
        streams = {name: self._stream(message, name, fd, tail) for name, fd in pipes}
        path = Path(message["error_file"]) if message["error_file"] else None
        key, opened = message["key"], tuple(streams.values())
        self.workers[key] = Worker(key, opened, tail, path, streams.get("stderr"))
        self.streams += opened

    def _stream(self, message: Message, name: str, descriptor: int, tail: Tail) -> Stream:
        os.set_blocking(descriptor, False)
        display = self._stdout if name == "stdout" else self._stderr
        to = message["to"][name]
        only_in_file, path = to["shown_without_log"], to["log"]
        stream = Stream(
            descriptor,
            source=self._source(message, name, display),
            display=display,
            raw=not self._screen.prefix,
            shown=to["shown"],
            shown_without_log=only_in_file,
            log=path and self._writer.log(path, message["label"], printed_else=only_in_file),
            filtered=self._filtered(message, to),
            tail=tail if name == "stderr" else None,
            progress=Progress(self._screen.progress_interval),
        )
        if only_in_file:
            self._only_in_files[message["key"], name] = stream
        return stream

    def _filtered(self, message: Message, to: Message) -> FilteredFile | None:
        if to["filtered"] is None:
            return None
        output = self._writer.log(to["filtered"], message["label"])
        return FilteredFile(output, message["prefix"].encode(), to["filters"])

    def _source(self, message: Message, name: str, display: Display) -> Source:
        if not self._screen.prefix:
            # One source: a line that one stream leaves unfinished is not broken for the other.
            return self._raw_source
        colour = message["key"] if self._screen.colour and display.terminal is not None else None
        prefix = message["prefix"] if colour is None else coloured(message["prefix"], colour)
        # Standard error comes first on the live line: progress bars are printed there.
        return Source((message["key"], int(name == "stdout")), prefix.encode())

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


def _must_be_whole(display: Display) -> bool:
    """Return whether lost output matters: not if the reader or the terminal is gone."""
    failure = display.output.failure
    return display.is_needed and (failure is None or failure.errno not in _READER_GONE)
