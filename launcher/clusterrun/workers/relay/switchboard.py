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
from clusterrun.workers.relay.outputs.file_thread import FileThread
from clusterrun.workers.relay.outputs.filtered_file import FilteredFile
from clusterrun.workers.relay.outputs.log_files import FileOutput, Link, lines_file, log_file
from clusterrun.workers.relay.streams import Stream, Worker
from clusterrun.workers.relay.text.progress_lines import Progress
from clusterrun.workers.relay.text.tail import Tail
from clusterrun.workers.time_limited import TimeLimited

_READER_GONE = {errno.EPIPE, errno.EIO}
"""EIO is a terminal that is gone, which the agent hears of by SIGHUP."""


class Switchboard:
    """All that the relay has in hand.

    Args:
        screen: where lines go and how they look.
        answer: sends a message to the agent.
        wake: called by other threads; then ``notes`` may be there or more may be read.
        files: reads error files.
    """

    def __init__(
        self,
        screen: Screen,
        answer: Callable[[Message], None],
        wake: Callable[[], None],
        files: TimeLimited,
    ) -> None:
        self.streams: list[Stream] = []
        self.outputs: list[DescriptorOutput] = []
        self._screen = screen
        self._answer = answer
        self._wake = wake
        self._threads: list[FileThread] = []
        self._log_thread: FileThread | None = None
        self._log_files: list[FileOutput] = []
        self._records: dict[str, FileOutput] = {}
        self._only_in_files: dict[tuple[int, str], Stream] = {}
        self.workers: dict[int, Worker] = {}
        self._raw_source = Source((0, 0), b"")
        self._reported: set[DescriptorOutput] = set()
        self._files = files
        self._stdout = self._display(screen.stdout, "standard output")
        shared = os.path.sameopenfile(screen.stdout, screen.stderr)
        self._stderr = self._stdout if shared else self._display(screen.stderr, "standard error")

    @property
    def displays(self) -> set[Display]:
        """Standard output and error; one if they are the same file."""
        return {self._stdout, self._stderr}

    @property
    def screen_waits(self) -> bool:
        """Whether somebody who reads from us is behind."""
        return any(output.waiting for output in self.outputs)

    @property
    def idle(self) -> bool:
        """Whether all that was read is also written."""
        return not self.screen_waits and all(thread.idle for thread in self._threads)

    def handle(self, message: Message, fds: Sequence[int]) -> None:
        """Do what the agent asks for in ``message``."""
        match message["kind"]:
            case "open":
                self._open(message, fds)
            case "finish":
                self._answer(self._finish(message["key"]))
            case "say":
                self.say(message["text"])
            case "interrupted":
                for stream in self.streams:
                    stream.leave_out_interrupts()
            case "record":
                self._record(message["path"], message["line"])
            case "link":
                thread = self._logs()
                thread.submit(Link(thread, Path(message["path"]), message["target"]))

    def say(self, text: str) -> None:
        """Print lines of the launcher itself to standard error."""
        self._stderr.notice(text.rstrip("\n").encode(errors="surrogateescape") + b"\n")

    def say_notes(self) -> None:
        """Print what the writing threads have to tell, and what they could not write."""
        for thread in self._threads:
            for note in thread.notes():
                self.say(note)
                for stream in self._only_in_files.values():
                    stream.show_unwritten()

    def report_failures(self) -> None:
        """Tell the agent or the user, once, that an output takes nothing any more."""
        for output in self.outputs:
            if output.failure and output not in self._reported:
                self._reported.add(output)
                self._report(output, output.failure)

    def close_ended(self) -> None:
        """Close the pipes of streams that have ended; no selector may watch them any more."""
        for stream in self.streams:
            if stream.ended:
                os.close(stream.descriptor)
        self.streams = [stream for stream in self.streams if not stream.ended]

    def end(self) -> None:
        """Pass on what can be read now, and take the live line off the terminal."""
        for stream in self.streams:
            stream.drain()
        for display in self.displays:
            display.clear()

    def losses(self) -> list[LostOutput]:
        """Return what workers have printed that could not be written by now, and is nowhere else."""
        shown = [display.output for display in self.displays if _must_be_whole(display)]
        losses = [it.loss() for it in (*shown, *self._log_files)]
        return [loss for loss in losses if loss]

    def hurry(self) -> None:
        """Have the writing threads wake us whenever ``idle`` may have become true."""
        for thread in self._threads:
            thread.hurry()

    def _display(self, descriptor: int, name: str) -> Display:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            thread = self._new_thread()
            return Display(FileOutput(thread, lambda: descriptor, name, "the job"), None)
        output = open_output(descriptor, name)
        self.outputs.append(output)
        own_terminal = os.isatty(descriptor) and not self._screen.merged
        return Display(output, descriptor if own_terminal else None)

    def _new_thread(self) -> FileThread:
        thread = FileThread(self._wake)
        self._threads.append(thread)
        return thread

    def _logs(self) -> FileThread:
        self._log_thread = self._log_thread or self._new_thread()
        return self._log_thread

    def _record(self, path: str, line: str) -> None:
        """Append a line to a file, which gets a thread of its own: other disks may hang."""
        if path not in self._records:
            self._records[path] = lines_file(self._new_thread(), Path(path))
        self._records[path].write(line.encode() + b"\n")

    def _open(self, message: Message, fds: Sequence[int]) -> None:
        tail = Tail()
        streams = tuple(
            self._stream(message, name, descriptor, tail if name == "stderr" else None)
            for name, descriptor in zip(message["streams"], fds, strict=True)
        )
        error_file = message["error_file"]
        stderr = dict(zip(message["streams"], streams, strict=True)).get("stderr")
        path = Path(error_file) if error_file else None
        worker = Worker(message["key"], streams, tail, path, stderr)
        self.workers[worker.key] = worker
        self.streams += streams

    def _stream(self, message: Message, name: str, descriptor: int, tail: Tail | None) -> Stream:
        os.set_blocking(descriptor, False)
        display = self._stdout if name == "stdout" else self._stderr
        to = message["to"][name]
        stream = Stream(
            descriptor,
            source=self._source(message, name, display),
            display=display,
            raw=not self._screen.prefix,
            shown=to["shown"],
            shown_without_log=to["shown_without_log"],
            log=self._log(to["log"], message["label"], printed_else=to["shown_without_log"]),
            filtered=self._filtered(message, to),
            tail=tail,
            progress=Progress(self._screen.progress_interval),
        )
        if stream.shown_without_log:
            self._only_in_files[message["key"], name] = stream
        return stream

    def _log(
        self, path: str | None, label: str, *, printed_else: bool = False
    ) -> FileOutput | None:
        if path is None:
            return None
        log = log_file(self._logs(), Path(path), label, printed_else=printed_else)
        self._log_files.append(log)
        return log

    def _filtered(self, message: Message, to: Message) -> FilteredFile | None:
        output = self._log(to["filtered"], message["label"])
        if output is None:
            return None
        return FilteredFile(output, message["prefix"].encode(), to["filters"])

    def _source(self, message: Message, name: str, display: Display) -> Source:
        if not self._screen.prefix:
            # What two streams of one worker leave unfinished is not ours to break.
            return self._raw_source
        colour = message["key"] if self._screen.colour and display.terminal is not None else None
        # Progress bars go to standard error.
        prefix = message["prefix"] if colour is None else coloured(message["prefix"], colour)
        return Source((message["key"], int(name == "stdout")), prefix.encode())

    def _finish(self, key: int) -> Message:
        worker = self.workers.pop(key, None)
        if worker is None:
            return {"kind": "ended", "key": key, "tail": "", "error_file": ""}
        for stream in worker.streams:
            stream.drain()
        return {
            "kind": "ended",
            "key": key,
            "tail": worker.tail.text(),
            "error_file": self._files.run(worker.error) or "",
        }

    def _report(self, output: DescriptorOutput, failure: OSError) -> None:
        is_stdout = output is self._stdout.output
        if failure.errno == errno.EPIPE:
            if is_stdout and not self._all_logged():
                self._answer({"kind": "output_closed"})
        elif failure.errno not in _READER_GONE:
            name = "standard output" if is_stdout else "standard error"
            self.say(
                f"clusterrun: {name}: {failure.strerror}; what the workers print there is lost"
            )

    def _all_logged(self) -> bool:
        """Return whether all that went to standard output is in files as well."""
        return all(
            stream.log for stream in self.streams if stream.display is self._stdout and stream.shown
        )


def _must_be_whole(display: Display) -> bool:
    """Return whether a user misses what was not printed: not where reader or terminal are gone."""
    failure = display.output.failure
    return display.is_needed and (failure is None or failure.errno not in _READER_GONE)
