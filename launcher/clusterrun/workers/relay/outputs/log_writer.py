"""All files that the relay writes, each by a thread that may wait for a disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

from clusterrun.workers.relay.outputs.file_thread import FileThread
from clusterrun.workers.relay.outputs.log_files import FileOutput, Link, lines_file, log_file


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
        """Return an output to a worker's log file; see ``log_file``."""
        log = log_file(self._logs(), Path(path), label, printed_else=printed_else)
        self.logs.append(log)
        return log

    def append(self, path: str, line: str) -> None:
        if path not in self._appended:
            self._appended[path] = lines_file(self.new_thread(), Path(path))
        self._appended[path].write(line.encode() + b"\n")

    def link(self, path: str, target: str) -> None:
        thread = self._logs()
        thread.submit(Link(thread, Path(path), target))

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
