"""The files that the relay writes, by threads: a write may wait for a hung disk, but the relay must not.

The relay's thread and the writing threads share no lock. Each number has one writer, queues are
``SimpleQueue`` and ``deque``, and a thread wakes the relay after the change that it must notice.
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
from clusterrun.workers.relay.routes import DISK_FULL_ERRORS

_NEWLINE = ord("\n")

_SECONDS_BETWEEN_TRIES = 0.05
"""To open a file on which a file server has a lease (fcntl(2)), which it gives up soon."""

_MAX_LINKS = 40
"""The kernel's limit."""

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""O_PATH needs no permission to list the folder."""

_IS_LINK = "it is a symbolic link, which is not followed"
_IS_NOT_REGULAR = "it is not a regular file"
_HAS_HARD_LINK = "it has another name as well (a hard link)"


class OutputFiles:
    """The workers' log files, written by one thread; every other file has its own, for its disk may hang.

    ``wake`` is called by the threads when there are new ``errors``, or when less data waits.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.logs: list[FileOutput] = []
        self._wake = wake
        self._errors: SimpleQueue[str] = SimpleQueue()
        self._threads: list[FileThread] = []
        self._log_thread: FileThread | None = None
        self._appended: dict[Path, FileOutput] = {}

    @property
    def is_idle(self) -> bool:
        """Whether all is written, and all errors were taken."""
        # In this order: a thread queues an error before it finishes its work.
        return all(thread.is_idle for thread in self._threads) and self._errors.empty()

    def log(
        self, path: Path, label: str, top: Path | None, *, print_on_failure: bool = False
    ) -> "FileOutput":
        """Return the log file of the worker ``label``; for the other arguments see ``FileOutput``.

        ``top``: see ``open_log``; None: the file's own folder.
        """
        open_file = partial(open_log, path, top or path.parent)
        name = f"log file {path}"
        log = FileOutput(self._logs(), open_file, name, label, print_on_failure=print_on_failure)
        self.logs.append(log)
        return log

    def opened(self, descriptor: int, name: str) -> "FileOutput":
        """Return the output to an open file: the launcher's standard output or error."""
        return FileOutput(self._new_thread(), lambda: descriptor, name, "the job")

    def append(self, path: Path, line: str, top: Path | None) -> None:
        """Append a line to a log file below ``top``; None: to a file that the user has named."""
        if path not in self._appended:
            open_file = partial(_open_named, path) if top is None else partial(open_log, path, top)
            thread = self._new_thread()
            self._appended[path] = FileOutput(thread, open_file, f"file {path}", "clusterrun")
        self._appended[path].write(line.encode() + b"\n")

    def link(self, path: Path, target: str) -> None:
        thread = self._logs()
        thread.submit(partial(_make_link, thread, path, target))

    def errors(self) -> Iterator[str]:
        """Yield the threads' error messages for the user, each once."""
        with suppress(Empty):
            while True:
                yield self._errors.get_nowait()

    def wake_when_idle(self) -> None:
        """Have the threads wake the relay whenever ``is_idle`` may have become true."""
        for thread in self._threads:
            thread.wake_when_idle()

    def _logs(self) -> "FileThread":
        self._log_thread = self._log_thread or self._new_thread()
        return self._log_thread

    def _new_thread(self) -> "FileThread":
        thread = FileThread(self._wake, self._errors)
        self._threads.append(thread)
        return thread


class FileThread:
    """Runs jobs that may take long, one after the other; calls ``wake`` when the relay has work.

    Raises:
        MachineError: a limit of processes allows no thread.

    """

    def __init__(self, wake: Callable[[], None], errors: SimpleQueue[str]) -> None:
        self.wake = wake
        self._errors = errors
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._submitted = 0
        self._done = 0
        self._wakes_when_idle = False
        if start_thread(self._run) is None:
            # The limit counts threads too.
            raise process_limit_error(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))

    @property
    def is_idle(self) -> bool:
        return self._done == self._submitted

    def submit(self, job: Callable[[], None]) -> None:
        self._submitted += 1
        self._jobs.put(job)

    def wake_when_idle(self) -> None:
        """Wake the relay, now and after each job, because it waits for ``is_idle``."""
        self._wakes_when_idle = True
        self.wake()

    def report(self, error: str) -> None:
        """Have the relay print an error; called in the thread."""
        self._errors.put(error)
        self.wake()

    def _run(self) -> None:
        while True:
            self._jobs.get()()
            self._done += 1
            if self._wakes_when_idle:
                self.wake()


class FileOutput:
    """An output to a file; the thread also calls ``open_file``, which may hang.

    ``name`` and ``user`` are for messages: "log file /tmp/x", "rank 3". If the disk is full, what can't
    be written is lost and counted, and the next write tries again. With ``print_on_failure`` it is kept
    for ``take_unwritten``, and the caller prints it and everything that follows.
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
        """Whether the rest of the last line was lost."""
        self._submitted = False
        self._closing = False
        self._is_handed_over = False
        self._first_error = ""
        self._submit()

    @property
    def waiting(self) -> int:
        return 0 if self.failure else self._taken - self._written - self._lost

    def write(self, data: bytes) -> None:
        if not data or self._is_handed_over:
            return
        self._taken += len(data)
        if self._print_on_failure or not self.failure:
            self._chunks.append(data)
            self._submit()

    def take_unwritten(self) -> bytes:
        """After a ``failure``, return what was not written; from now on take nothing."""
        self._is_handed_over = True
        unwritten = bytes(self._rest) + b"".join(self._chunks)
        self._taken -= len(unwritten)
        self._rest = memoryview(b"")
        self._chunks.clear()
        return unwritten

    def loss(self) -> LostOutput | None:
        """Return what is not written by now; None if all is."""
        size = self._taken - self._written
        return LostOutput(self._name, size, self._first_error) if size else None

    def close(self) -> None:
        self._closing = True
        self._submit()

    def _submit(self) -> None:
        if not self._submitted:
            self._submitted = True
            self._thread.submit(self._write)

    # The methods below are called in the thread.

    def _write(self) -> None:
        # Cleared before the queue is read: a write in between submits once more.
        self._submitted = False
        try:
            self._write_all()
        except OSError as error:
            self._handle_error(error)
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
            self._wake_if_relieved(before)

    def _wake_if_relieved(self, before: int) -> None:
        """Wake the relay if so little waits now that it may continue to read."""
        if before > LOW_WATER_MARK >= self.waiting:
            self._thread.wake()

    def _next_chunks(self) -> bytes:
        return b"".join(self._chunks.popleft() for _ in range(len(self._chunks)))

    def _handle_error(self, error: OSError) -> None:
        can_not_open = self._descriptor is None and error.errno not in DISK_FULL_ERRORS
        if self._print_on_failure or can_not_open:
            # From here on only the relay's thread uses what is left.
            self.failure = error
        else:
            before = self.waiting
            self._is_torn = self._last != _NEWLINE
            self._lost += len(self._rest) + len(self._next_chunks())
            self._rest = memoryview(b"")
            self._wake_if_relieved(before)
        if not self._first_error:
            name, what = self._name, f"{self._user} continues"
            if isinstance(error, LogFolderError):
                # The same message for all files there; it is printed once.
                name, what = f"log folder {error.folder}", "no log file is written there"
            elif self._print_on_failure:
                what = f"{self._user} prints to clusterrun's output instead"
            elif self.failure is None:
                what += ", but output that does not fit is lost"
            else:
                what += " without it"
            self._thread.report(f"clusterrun: {name}: {error.strerror}; {what}")
        self._first_error = error.strerror or str(error)


class LogFolderError(OSError):
    """A folder for log files can't be used."""

    def __init__(self, error: OSError, folder: Path, why: str | None = None) -> None:
        super().__init__(error.errno, why or error.strerror)
        self.folder = folder


def open_log(path: Path, top: Path) -> int:
    """Open a log file to append to; make it and its folders if they are missing.

    ``top``, the folder of ``--log-dir``, may be or contain a symbolic link. Other users may write below
    it, so there no link is followed, no file with a second name is written, and no pipe is waited for.

    Raises:
        LogFolderError: its folder can't be used.
        OSError: another error.

    """
    folder = _open_folder(path.parent, top)
    try:
        descriptor = _open_without_waiting(path.name, folder)
    finally:
        os.close(folder)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    why = _HAS_HARD_LINK if stat.S_ISREG(found.st_mode) else _IS_NOT_REGULAR
    raise PermissionError(errno.EPERM, why)


def _open_folder(folder: Path, top: Path) -> int:
    """Open a folder at or below ``top``; make those that are missing."""
    outer = None if folder == top else _open_folder(folder.parent, top)
    name, flags = (top, _FOLDER) if outer is None else (folder.name, _FOLDER | os.O_NOFOLLOW)
    try:
        try:
            return os.open(name, flags, dir_fd=outer)
        except FileNotFoundError:
            if outer is None:
                top.mkdir(parents=True, exist_ok=True)
            else:
                # Other nodes make it at the same time.
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=outer)
            return os.open(name, flags, dir_fd=outer)
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise
        is_link = outer is not None and error.errno == errno.ENOTDIR and folder.is_symlink()
        raise LogFolderError(error, folder, _IS_LINK if is_link else None) from None
    finally:
        if outer is not None:
            os.close(outer)


def _open_without_waiting(name: str, folder: int) -> int:
    """Open a file, but don't wait for the reader of a named pipe."""
    while True:
        try:
            flags = _APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            return os.open(name, flags, 0o666, dir_fd=folder)
        except BlockingIOError:
            time.sleep(_SECONDS_BETWEEN_TRIES)
        except OSError as error:
            why = {errno.ELOOP: _IS_LINK, errno.ENXIO: _IS_NOT_REGULAR}.get(error.errno or 0)
            raise OSError(error.errno, why) if why else error from None


def _open_named(path: Path) -> int:
    """Open a file that the user has named, to append to.

    A symbolic link is followed if this user or root has made it. In a folder where all users may create
    files, such as /tmp, a file of another user is not written. The kernel forbids that only if
    fs.protected_symlinks and its kin are set (proc_sys_fs(5)), which containers may lack.
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
            if why := _why_untrusted(found, path.parent):
                raise PermissionError(errno.EPERM, why)
            if not stat.S_ISLNK(found.st_mode):
                # Opens the file that was checked, even if another one has its name now.
                return os.open(f"/proc/self/fd/{entry}", _APPEND)
            if found.st_dev == Path("/proc/self").lstat().st_dev:
                # /dev/stderr and the like lead to a link of the kernel, which has no real target.
                return os.open(path, _APPEND)
            path = path.parent / os.readlink("", dir_fd=entry)
        finally:
            os.close(entry)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _why_untrusted(found: os.stat_result, folder: Path) -> str | None:
    """Return why an entry of ``folder`` must not be used."""
    is_other_users = found.st_uid not in {os.geteuid(), 0}
    if stat.S_ISLNK(found.st_mode):
        why = f"it is a symbolic link owned by user {found.st_uid}, not by you"
        return why if is_other_users else None
    parent = folder.stat()
    if not (parent.st_mode & stat.S_ISVTX and parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return None
    if is_other_users and found.st_uid != parent.st_uid:
        return f"user {found.st_uid} has put it there"
    return _HAS_HARD_LINK if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 else None


def _make_link(thread: FileThread, path: Path, target: str) -> None:
    """Make ``path`` a symbolic link to ``target`` in one step: under another name, then renamed."""
    # A name that no other user can guess.
    new = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and not path.is_symlink():
            # Renaming would replace the user's own file.
            raise FileExistsError(errno.EEXIST, "a file with that name already exists")
        new.symlink_to(target)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        thread.report(f"clusterrun: link {path}: {error.strerror}")
