"""Outputs to files, which a ``FileThread`` writes: log files, and a standard output that is a file."""

import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from clusterrun.domain.lost_output import LostOutput
from clusterrun.workers.relay.outputs.descriptor_output import RELIEVED
from clusterrun.workers.relay.outputs.file_thread import FileThread

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


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
        no_room = error.errno in _NO_ROOM
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


def log_file(thread: FileThread, path: Path, user: str, *, printed_else: bool) -> FileOutput:
    """Return an output that appends to ``path``, and makes it with its folders.

    ``printed_else``: what can't be written there is printed.
    """
    open_file = partial(_open_to_append, path)
    return FileOutput(thread, open_file, f"log file {path}", user, printed_else=printed_else)


def lines_file(thread: FileThread, path: Path) -> FileOutput:
    """Return an output that appends the launcher's own lines to ``path``."""
    return FileOutput(thread, partial(_open_to_append, path), f"file {path}", "clusterrun")


def _open_to_append(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(path, flags, 0o666)


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
