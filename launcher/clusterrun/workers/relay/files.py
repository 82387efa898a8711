"""All files that the relay writes, each by a thread: a write may wait for a hung disk, the relay must not.

The relay's thread and the writing threads share no lock. Each number has one writer, queues are
``SimpleQueue`` and ``deque``, and the relay is woken after the change that it must notice.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from clusterrun.descriptor_output import RELIEVED, LostOutput
from clusterrun.processes import start_thread
from clusterrun.workers.children import no_process
from clusterrun.workers.relay.routes import NO_ROOM

_RETRY_SECONDS = 1.0

Work = Callable[[], bool]
"""May take long; returns False to be called again in a second, as there is no room now."""


class OutputFiles:
    """The workers' log files share a thread; every other file has its own, as other disks may hang.

    ``wake`` is called by the threads: then there may be ``notes``, or less that waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.logs: list[FileOutput] = []
        self._wake = wake
        self._notes: SimpleQueue[str] = SimpleQueue()
        self._threads: list[FileThread] = []
        self._log_thread: FileThread | None = None
        self._appended: dict[Path, FileOutput] = {}

    @property
    def is_idle(self) -> bool:
        """Whether all is written, and all notes are taken."""
        # In this order: a thread makes its note before its work is done.
        return all(thread.is_idle for thread in self._threads) and self._notes.empty()

    def log(self, path: Path, label: str, *, printed_else: bool = False) -> "FileOutput":
        """Return the log file of a worker, ``label`` in messages; see ``FileOutput``."""
        open_file = partial(_open_to_append, path, os.O_NOFOLLOW)
        name = f"log file {path}"
        log = FileOutput(self._logs(), open_file, name, label, printed_else=printed_else)
        self.logs.append(log)
        return log

    def opened(self, descriptor: int, name: str) -> "FileOutput":
        """Return a file that is open already: the launcher's standard output."""
        return FileOutput(self._new_thread(), lambda: descriptor, name, "the job")

    def append(self, path: Path, line: str) -> None:
        if path not in self._appended:
            open_file = partial(_open_to_append, path)
            thread = self._new_thread()
            self._appended[path] = FileOutput(thread, open_file, f"file {path}", "clusterrun")
        self._appended[path].write(line.encode() + b"\n")

    def link(self, path: Path, target: str) -> None:
        thread = self._logs()
        thread.submit(partial(_make_link, thread, path, target))

    def notes(self) -> Iterator[str]:
        """Yield the threads' messages for the user, each once."""
        with suppress(Empty):
            while True:
                yield self._notes.get_nowait()

    def hurry(self) -> None:
        """Have the threads wake the relay whenever ``is_idle`` may have become true."""
        for thread in self._threads:
            thread.hurry()

    def _logs(self) -> "FileThread":
        self._log_thread = self._log_thread or self._new_thread()
        return self._log_thread

    def _new_thread(self) -> "FileThread":
        thread = FileThread(self._wake, self._notes)
        self._threads.append(thread)
        return thread


class FileThread:
    """Does one piece of work after the other; calls ``wake`` when the relay should look again.

    Raises:
        MachineError: a limit of processes allows no thread.

    """

    def __init__(self, wake: Callable[[], None], notes: SimpleQueue[str]) -> None:
        self.wake = wake
        self._notes = notes
        self._works: SimpleQueue[Work] = SimpleQueue()
        self._stuck: dict[Work, None] = {}
        self._submitted = 0
        self._done = 0
        self._leaving = False
        if start_thread(self._run) is None:
            # The limit counts threads, too.
            raise no_process(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    @property
    def is_idle(self) -> bool:
        return self._done == self._submitted and not self._stuck

    def submit(self, work: Work) -> None:
        self._submitted += 1
        self._works.put(work)

    def hurry(self) -> None:
        """Wake the relay after each piece of work from now on: it waits for ``is_idle``."""
        self._leaving = True
        self.wake()

    def note(self, text: str) -> None:
        """Have the relay print ``text`` (called by the thread)."""
        self._notes.put(text)
        self.wake()

    def _run(self) -> None:
        retry_at = 0.0
        while True:
            with suppress(Empty):
                self._attempt(self._works.get(timeout=_RETRY_SECONDS if self._stuck else None))
                self._done += 1
            if self._stuck and time.monotonic() >= retry_at:
                for work in list(self._stuck):
                    self._attempt(work)
                retry_at = time.monotonic() + _RETRY_SECONDS
            if self._leaving:
                self.wake()

    def _attempt(self, work: Work) -> None:
        if work():
            self._stuck.pop(work, None)
        else:
            self._stuck[work] = None


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

    def _submit(self) -> None:
        if not self._submitted:
            self._submitted = True
            self._thread.submit(self._write)

    def _write(self) -> bool:
        """Write everything (called by the thread, as all that follows)."""
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

    def _write_all(self) -> None:
        if self.failure:
            return
        if self._descriptor is None:
            self._descriptor = self._open_file()
        while self._rest or self._chunks:
            self._rest = self._rest or memoryview(self._next_chunks())
            count = os.write(self._descriptor, self._rest)
            self._rest = self._rest[count:]
            before = self.waiting
            self._written += count
            if before > RELIEVED >= before - count:
                self._thread.wake()

    def _next_chunks(self) -> bytes:
        return b"".join(self._chunks.popleft() for _ in range(len(self._chunks)))

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


def _make_link(thread: FileThread, path: Path, target: str) -> bool:
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
