"""All files that the relay writes, each by a thread that may wait for a disk."""

import errno
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from clusterrun.domain.streams import LostOutput
from clusterrun.workers.relay.descriptor_output import RELIEVED
from clusterrun.workers.relay.file_thread import FileThread
from clusterrun.workers.relay.lines import with_prefix
from clusterrun.workers.relay.log_layout import NO_ROOM


class FileOutput:
    """An output to a file; the thread also calls ``open_file``, which may hang, too.

    ``name`` and ``user`` are for messages: "log file /tmp/x", "rank 3". With ``printed_else``, what
    can't be written is kept for ``take_back``, and printed.
    """

    def __init__(
        self,
        thread: FileThread,
        open_file: Callable[[], int],
        name: str,
        user: str,
        *,
        printed_else: bool = False,
    ) -> None:
        self.failure: OSError | None = None
        self._thread = thread
        self._open_file = open_file
        self._descriptor: int | None = None
        self._name = name
        self._user = user
        self._printed_else = printed_else
        self._chunks: deque[bytes] = deque()
        self._rest = memoryview(b"")
        self._taken = 0
        self._written = 0
        self._submitted = False
        self._closing = False
        self._is_given_up = False
        self._trouble = ""
        self._submit()

    @property
    def waiting(self) -> int:
        return 0 if self.failure else self._taken - self._written

    def write(self, data: bytes) -> None:
        if not data or self._is_given_up:
            return
        self._taken += len(data)
        if self._printed_else or not self.failure:
            self._chunks.append(data)
            self._submit()

    def take_back(self) -> bytes:
        """Return what could not be written because of a ``failure``; from now on take nothing."""
        self._is_given_up = True
        unwritten = bytes(self._rest) + b"".join(self._chunks)
        self._taken -= len(unwritten)
        self._rest = memoryview(b"")
        self._chunks.clear()
        return unwritten

    def loss(self) -> LostOutput | None:
        """Return what is not written by now; None if all is."""
        size = self._taken - self._written
        return LostOutput(self._name, size, self._trouble) if size else None

    def close(self) -> None:
        self._closing = True
        self._submit()

    def _write(self) -> bool:
        """Write everything (called by the thread)."""
        # Cleared before the queue is read: a write in between submits once more.
        self._submitted = False
        try:
            self._write_all()
        except OSError as error:
            return self._complain(error)
        if self._closing and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self.failure = None, OSError(errno.EBADF, "closed")
        return True

    def _submit(self) -> None:
        if not self._submitted:
            self._submitted = True
            self._thread.submit(self._write)

    def _write_all(self) -> None:
        if self.failure:
            return
        if self._descriptor is None:
            self._descriptor = self._open_file()
        while self._rest or self._chunks:
            self._rest = self._rest or memoryview(self._next_chunks())
            count = os.write(self._descriptor, self._rest)
            self._rest = self._rest[count:]
            self._count_written(count)

    def _next_chunks(self) -> bytes:
        return b"".join(self._chunks.popleft() for _ in range(len(self._chunks)))

    def _count_written(self, count: int) -> None:
        before = self.waiting
        self._written += count
        if before > RELIEVED >= before - count:
            self._thread.wake()

    def _complain(self, error: OSError) -> bool:
        no_room = error.errno in NO_ROOM
        if not no_room:
            # From here on only the relay's thread uses what is left.
            self.failure = error
        if not (no_room and self._trouble):
            without = "prints here instead" if self._printed_else else "goes on without it"
            end = "waits until there is room" if no_room else without
            reason = f"{error.strerror}; {self._user} {end}"
            self._thread.note(f"clusterrun: {self._name}: {reason}")
        self._trouble = error.strerror or str(error)
        return not no_room


def _open_to_append(path: Path, more: int = 0) -> int:
    """Open a file; ``more`` flags: no link that another user has put among the logs is followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags | more, 0o666)


def make_link(thread: FileThread, path: Path, target: str) -> bool:
    """Make ``path`` a symbolic link to ``target`` in one step: under another name, then renamed."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not path.is_symlink():
            # The user's own file, which renaming would replace.
            raise FileExistsError(errno.EEXIST, "there is a file of that name")
        new.unlink(missing_ok=True)
        new.symlink_to(target)
        new.replace(path)
    except OSError as error:
        thread.note(f"clusterrun: link {path}: {error.strerror}")
    return True


class LogWriter:
    """The workers' log files share a thread; every other file has its own, as other disks may hang.

    ``wake`` is called by the threads: then there may be ``notes``, or less that waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.logs: list[FileOutput] = []
        self._wake = wake
        self._threads: list[FileThread] = []
        self._log_thread: FileThread | None = None
        self._appended: dict[Path, FileOutput] = {}

    @property
    def idle(self) -> bool:
        return all(thread.idle for thread in self._threads)

    def log(self, path: Path, label: str, *, printed_else: bool = False) -> FileOutput:
        log = FileOutput(
            self._logs(),
            partial(_open_to_append, path, os.O_NOFOLLOW),
            f"log file {path}",
            label,
            printed_else=printed_else,
        )
        self.logs.append(log)
        return log

    def append(self, path: Path, line: str) -> None:
        if path not in self._appended:
            open_file = partial(_open_to_append, path)
            thread = self.new_thread()
            self._appended[path] = FileOutput(thread, open_file, f"file {path}", "clusterrun")
        self._appended[path].write(line.encode() + b"\n")

    def link(self, path: Path, target: str) -> None:
        thread = self._logs()
        thread.submit(partial(make_link, thread, path, target))

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
