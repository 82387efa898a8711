"""All files that the relay writes, each by a thread: a write may wait for a hung disk, the relay must not.

The relay's thread and the writing threads share no lock. Each number has one writer, queues are
``SimpleQueue`` and ``deque``, and the relay is woken after the change that it must notice.
"""

import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from clusterrun.descriptor_output import LOW_WATER_MARK, LostOutput
from clusterrun.processes import start_thread
from clusterrun.workers.children import process_limit_error
from clusterrun.workers.relay.routes import NO_ROOM

_NEWLINE = ord("\n")

_SECONDS_OF_A_LEASE = 0.05
"""Between tries to open a file that a file server has a lease of (fcntl(2)): it gives it up soon."""

_MAX_LINKS = 40
"""As in the kernel."""

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""A folder that is only passed through: it needs no right to list it."""

_NO_LINK = "it is a symbolic link, which is not followed"
_NO_FILE = "it is not a regular file"
_MORE_NAMES = "it has another name as well (a hard link)"

Work = Callable[[], None]
"""May take long."""


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
        self._log_folders = LogFolders()
        self._appended: dict[Path, FileOutput] = {}

    @property
    def is_idle(self) -> bool:
        """Whether all is written, and all notes are taken."""
        # In this order: a thread makes its note before its work is done.
        return all(thread.is_idle for thread in self._threads) and self._notes.empty()

    def log(
        self, path: Path, label: str, top: Path | None, *, print_on_failure: bool = False
    ) -> "FileOutput":
        """Return the log file of a worker, ``label`` in messages; see ``FileOutput``.

        ``top``: see ``LogFolders``; None: the file's own folder.
        """
        open_file = partial(self._log_folders.open_file, path, top or path.parent)
        name = f"log file {path}"
        log = FileOutput(self._logs(), open_file, name, label, print_on_failure=print_on_failure)
        self.logs.append(log)
        return log

    def opened(self, descriptor: int, name: str) -> "FileOutput":
        """Return a file that is open already: the launcher's standard output."""
        return FileOutput(self._new_thread(), lambda: descriptor, name, "the job")

    def append(self, path: Path, line: str, top: Path | None) -> None:
        """Append a line to a log file below ``top``; None: to a file that the user has named."""
        if path not in self._appended:
            open_file = partial(_open_named, path)
            if top is not None:
                open_file = partial(LogFolders().open_file, path, top)
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
        self._submitted = 0
        self._done = 0
        self._leaving = False
        if start_thread(self._run) is None:
            # The limit counts threads, too.
            raise process_limit_error(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    @property
    def is_idle(self) -> bool:
        return self._done == self._submitted

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
        while True:
            self._works.get()()
            self._done += 1
            if self._leaving:
                self.wake()


class FileOutput:
    """An output to a file; the thread also calls ``open_file``, which may hang, too.

    ``name`` and ``user`` are for messages: "log file /tmp/x", "rank 3". What can't be written, as the
    disk is full, is lost and counted, and the next write tries again. With ``print_on_failure``, it is kept
    for ``take_unwritten``, and printed, as is all that follows.
    """

    def __init__(
        self,
        thread: FileThread,
        open_file: Callable[[], int],
        name: str,
        user: str,
        *,
        print_on_failure: bool = False,
    ) -> None:
        self.failure: OSError | None = None
        self._thread = thread
        self._open_file = open_file
        self._descriptor: int | None = None
        self._name = name
        self._user = user
        self._print_on_failure = print_on_failure
        self._chunks: deque[bytes] = deque()
        self._rest = memoryview(b"")
        self._taken = 0
        self._written = 0
        self._lost = 0
        self._last = _NEWLINE
        """The last byte that was written."""
        self._is_torn = False
        """The line that it belongs to is lost in part."""
        self._submitted = False
        self._closing = False
        self._is_given_up = False
        self._trouble = ""
        self._submit()

    @property
    def waiting(self) -> int:
        return 0 if self.failure else self._taken - self._written - self._lost

    def write(self, data: bytes) -> None:
        if not data or self._is_given_up:
            return
        self._taken += len(data)
        if self._print_on_failure or not self.failure:
            self._chunks.append(data)
            self._submit()

    def take_unwritten(self) -> bytes:
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

    def _write(self) -> None:
        """Write everything (called by the thread, as all that follows)."""
        # Cleared before the queue is read: a write in between submits once more.
        self._submitted = False
        try:
            self._write_all()
        except OSError as error:
            self._complain(error)
        if self._closing and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self.failure = None, OSError(errno.EBADF, "closed")

    def _write_all(self) -> None:
        if self.failure:
            return
        if self._descriptor is None:
            self._descriptor = self._open_file()
        while self._rest or self._chunks:
            self._rest = self._rest or memoryview(self._next_chunks())
            if self._is_torn:
                os.write(self._descriptor, b"\n")
                self._is_torn, self._last = False, _NEWLINE
            count = os.write(self._descriptor, self._rest)
            before, self._last = self.waiting, self._rest[count - 1]
            self._rest = self._rest[count:]
            self._written += count
            self._relieve(before)

    def _relieve(self, before: int) -> None:
        """Wake the relay if less waits now than makes it read no more."""
        if before > LOW_WATER_MARK >= self.waiting:
            self._thread.wake()

    def _next_chunks(self) -> bytes:
        return b"".join(self._chunks.popleft() for _ in range(len(self._chunks)))

    def _complain(self, error: OSError) -> None:
        if self._print_on_failure or (self._descriptor is None and error.errno not in NO_ROOM):
            # From here on only the relay's thread uses what is left.
            self.failure = error
        else:
            before = self.waiting
            self._is_torn = self._last != _NEWLINE
            self._lost += len(self._rest) + len(self._next_chunks())
            self._rest = memoryview(b"")
            self._relieve(before)
        if not self._trouble:
            name, what = self._name, f"{self._user} goes on"
            if isinstance(error, LogFolderError):
                # The same for all files there: it is printed once.
                name, what = f"log folder {error.folder}", "no log file is written there"
            elif self._print_on_failure:
                what = f"{self._user} prints here instead"
            elif self.failure is None:
                what += ", and what does not fit is lost"
            else:
                what += " without it"
            self._thread.note(f"clusterrun: {name}: {error.strerror}; {what}")
        self._trouble = error.strerror or str(error)


class LogFolderError(OSError):
    """A folder for log files can't be used."""

    def __init__(self, error: OSError, folder: Path) -> None:
        super().__init__(error.errno, error.strerror)
        self.folder = folder


class LogFolders:
    """The folders below ``--log-dir``, where others may write, too; for one thread.

    The folder that the user has named, ``top``, may be a link or contain some. Below it, nothing that
    another user may have put there leads to another place, or is waited for. The last folder stays
    open: each file of a node needs one look-up.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._descriptor = -1

    def open_file(self, path: Path, top: Path) -> int:
        """Open a file to append to, and make it and its folders if they are missing.

        Raises:
            LogFolderError: its folder can't be used.
            OSError: another error.

        """
        if path.parent != self._path:
            self._enter(path.parent, top)
        try:
            return _open_log(path.name, self._descriptor)
        except FileNotFoundError:
            # The folder was removed while it was open.
            self._enter(path.parent, top)
            return _open_log(path.name, self._descriptor)

    def _enter(self, folder: Path, top: Path) -> None:
        self._leave()
        reached = top
        try:
            self._descriptor = _open_top(top)
            for name in folder.relative_to(top).parts:
                reached /= name
                outer = self._descriptor
                self._descriptor = _open_inner(name, outer)
                os.close(outer)
        except OSError as error:
            self._leave()
            if error.errno in NO_ROOM:
                raise
            raise LogFolderError(error, reached) from None
        self._path = folder

    def _leave(self) -> None:
        self._path = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_top(folder: Path) -> int:
    try:
        return os.open(folder, _FOLDER)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, _FOLDER)


def _open_inner(name: str, folder: int) -> int:
    try:
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
        except FileNotFoundError:
            # Other nodes make it at the same time.
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        why = _NO_LINK if stat.S_ISLNK(found.st_mode) else error.strerror
        raise NotADirectoryError(error.errno, why) from None


def _open_log(name: str, folder: int) -> int:
    descriptor = _open_at_once(name, folder)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    raise PermissionError(errno.EPERM, _MORE_NAMES if stat.S_ISREG(found.st_mode) else _NO_FILE)


def _open_at_once(name: str, folder: int) -> int:
    """Open a file, but wait for no reader of a named pipe."""
    while True:
        try:
            flags = _APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            return os.open(name, flags, 0o666, dir_fd=folder)
        except BlockingIOError:
            time.sleep(_SECONDS_OF_A_LEASE)
        except OSError as error:
            why = {errno.ELOOP: _NO_LINK, errno.ENXIO: _NO_FILE}.get(error.errno or 0)
            raise OSError(error.errno, why) if why else error from None


def _open_named(path: Path) -> int:
    """Open a file that the user has named, to append to.

    A link is followed if this user or root has made it. Where all users may make files, as in /tmp,
    what another user has put there is not written to: the kernel forbids that only if it is set to
    (fs.protected_symlinks and the like in proc_sys_fs(5)), which containers may lack.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_MAX_LINKS):
        try:
            entry = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            with suppress(FileExistsError):
                return os.open(path, _APPEND | os.O_CREAT | os.O_EXCL, 0o666)
            continue
        try:
            found = os.fstat(entry)
            if why := _distrust(found, path.parent):
                raise PermissionError(errno.EPERM, why)
            if not stat.S_ISLNK(found.st_mode):
                # No other than was looked at.
                return os.open(f"/proc/self/fd/{entry}", _APPEND)
            if found.st_dev == Path("/proc/self").lstat().st_dev:
                # /dev/stderr and the like lead to one of the kernel's, which has no path.
                return os.open(path, _APPEND)
            path = path.parent / os.readlink("", dir_fd=entry)
        finally:
            os.close(entry)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _distrust(found: os.stat_result, folder: Path) -> str:
    """Return why a file of the user's is not used; "" if it is."""
    is_strangers = found.st_uid not in {os.geteuid(), 0}
    if stat.S_ISLNK(found.st_mode):
        return f"it is a symbolic link of user {found.st_uid}, not of yours" if is_strangers else ""
    around = folder.stat()
    if not (around.st_mode & stat.S_ISVTX and around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return ""
    if is_strangers and found.st_uid != around.st_uid:
        return f"user {found.st_uid} has put it there"
    return _MORE_NAMES if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 else ""


def _make_link(thread: FileThread, path: Path, target: str) -> None:
    """Make ``path`` a symbolic link to ``target`` in one step: under another name, then renamed."""
    # A name that no other user can take first.
    new = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not path.is_symlink():
            # The user's own file, which renaming would replace.
            raise FileExistsError(errno.EEXIST, "there is a file of that name")
        new.symlink_to(target)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        thread.note(f"clusterrun: link {path}: {error.strerror}")
