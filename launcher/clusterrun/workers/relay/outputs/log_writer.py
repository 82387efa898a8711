"""All files that the relay writes, each by a thread that may wait for a disk."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from clusterrun.workers.relay.outputs.file_thread import FileThread
from clusterrun.workers.relay.outputs.log_files import FileOutput, lines_file, log_file, make_link
from clusterrun.workers.relay.text.lines import with_prefix


class LogWriter:
    """The workers' log files share a thread; every other file has its own, as other disks may hang.

    ``wake`` is called by the threads: then there may be ``notes``, or less that waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.logs: list[FileOutput] = []
        self._wake = wake
        self._threads: list[FileThread] = []
        self._log_thread: FileThread | None = None
        self._appended: dict[str, FileOutput] = {}

    @property
    def idle(self) -> bool:
        return all(thread.idle for thread in self._threads)

    def log(self, path: str, label: str, *, printed_else: bool = False) -> FileOutput:
        log = log_file(self._logs(), Path(path), label, printed_else=printed_else)
        self.logs.append(log)
        return log

    def append(self, path: str, line: str) -> None:
        if path not in self._appended:
            self._appended[path] = lines_file(self.new_thread(), Path(path))
        self._appended[path].write(line.encode() + b"\n")

    def link(self, path: str, target: str) -> None:
        thread = self._logs()
        thread.submit(partial(make_link, thread, Path(path), target))

    def notes(self) -> Iterator[str]:
        """Yield the messages for the user, each once."""
        for thread in self._threads:
            yield from thread.notes()

    def hurry(self) -> None:
        """Have the threads wake the relay whenever ``idle`` may have become true."""
        for thread in self._threads:
            thread.hurry()

    def new_thread(self) -> FileThread:
        thread = FileThread(self._wake)
        self._threads.append(thread)
        return thread

    def _logs(self) -> FileThread:
        self._log_thread = self._log_thread or self.new_thread()
        return self._log_thread


class FilteredFile:
    """One rank's part of the file: whole lines, each with its ``prefix``."""

    def __init__(self, output: FileOutput, prefix: bytes, texts: Sequence[str]) -> None:
        """Take the file, opened to append to, and the texts, of which there is at least one."""
        self.output = output
        self._prefix = prefix
        self._pattern = any_of(texts)

    def add(self, lines: bytes) -> None:
        """Take whole lines; of a line that comes in pieces, those pieces that contain a text."""
        found = lines_with(self._pattern, lines)
        self.output.write(with_prefix(self._prefix, found, continues=False))


def any_of(texts: Sequence[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds one of ``texts``, none of which has a line break in it."""
    return re.compile(b"|".join(re.escape(text.encode()) for text in texts))


def lines_with(pattern: re.Pattern[bytes], lines: bytes) -> bytes:
    """Return those of ``lines`` that contain ``pattern``, the last one ended if it is not."""
    found, end = b"", 0
    while match := pattern.search(lines, end):
        begin = lines.rfind(b"\n", end, match.start()) + 1 or end
        end = lines.find(b"\n", match.end()) + 1 or len(lines)
        found += lines[begin:end]
    return found if found.endswith(b"\n") or not found else found + b"\n"
