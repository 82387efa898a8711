"""A job's scratch folder in TMPDIR, which the next job removes if this one is killed.

It has the files that workers write for the launcher (TORCHELASTIC_ERROR_FILE) and the page that
ranks share with the agent (``suspend``).
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterrun.processes import TimeLimitedCalls, boot_id

SECONDS_TO_ANSWER = 1.0
"""If the file system takes longer, workers get no error files."""

NAMES = 2
"""Candidate names. Another user may have seen the first and made a folder of that name."""


class Scratch:
    """The folder of one job. Each call takes at most ``seconds``, even if the file system hangs."""

    def __init__(self, *paths: Path, seconds: float = SECONDS_TO_ANSWER) -> None:
        """``paths``: candidates; the first one that no other user has made is used."""
        self.paths = paths
        self.path = paths[0]
        self.fault = ""
        """Why there is no folder, for messages; "" if there is one, or if ``make`` was not called yet."""
        self.files = TimeLimitedCalls(seconds)
        """For work on files of the folder."""
        self._seconds = seconds
        self._owner: int | None = None

    def make(self) -> bool:
        """Make the folder, at the next path if necessary; return whether it exists.

        Call it again before each attempt: a cleaner of temporary files may have removed the folder.
        """
        return self._run(self._make)

    def add(self, folders: Iterable[Path]) -> bool:
        """Make ``folders`` inside the folder; return whether all exist."""
        return self._run(partial(self._add, tuple(folders)))

    def remove(self) -> None:
        for path in self.paths:
            self.files.run(partial(remove_scratch, path))

    def _run(self, work: Callable[[], str]) -> bool:
        fault = self.files.run(work)
        slow = f"{self.path.parent} does not answer within {self._seconds:g} s"
        self.fault = slow if fault is None else fault
        return not self.fault

    def _make(self) -> str:
        """Return the ``fault``."""
        try:
            for path in self.paths[self.paths.index(self.path) :]:
                self.path = path
                if self._is_ours():
                    return ""
        except OSError as error:
            return f"{self.path.parent}: {error.strerror}"
        return self._taken

    def _add(self, folders: Iterable[Path]) -> str:
        """Return the ``fault``."""
        try:
            if not self._is_ours():
                return self._taken
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{self.path}: {error.strerror}"
        return ""

    def _is_ours(self) -> bool:
        """Make the folder if it is missing; return whether it is ours, not another user's."""
        with suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
            # Not geteuid(): a file server may map root to another user.
            self._owner = self.path.lstat().st_uid
        found = self.path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == self._owner

    @property
    def _taken(self) -> str:
        return f"{self.path} was made by another user"


def remove_scratch(directory: Path) -> None:
    """Remove ``directory`` with its contents as far as possible, without following links."""
    # RecursionError: fwalk recurses for each level of directories.
    with suppress(OSError, RecursionError):
        for _, directories, files, descriptor in os.fwalk(directory, topdown=False):
            for name in (*files, *directories):
                _remove_entry(name, descriptor)
        directory.rmdir()


def _remove_entry(name: str, folder: int) -> None:
    with suppress(OSError):
        try:
            os.rmdir(name, dir_fd=folder)
        except NotADirectoryError:
            os.unlink(name, dir_fd=folder)


def new_scratch_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return candidate paths in TMPDIR for this process's folder, without making it.

    The name is ``clusterrun-HOST-BOOT-PIDNS-TIMENS-PID-START-RANDOM``: host, boot id, PID and time
    namespace, pid, start time, and random digits, so that no other user can make the folder first.
    """
    parent = Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108 - the folder is closed to others
    name = f"{_prefix()}{os.getpid()}-{_start_time(os.getpid())}"
    return tuple(parent / f"{name}-{os.urandom(8).hex()}" for _ in range(NAMES))


def remove_leftovers(parent: Path) -> None:
    """Remove the folders in ``parent`` that killed jobs have left.

    Only folders whose agents this process could see are removed: same host, boot and namespaces. So
    containers and hosts that share TMPDIR do not remove each other's folders. A job that is just
    starting is safe, because its running agent is in the folder's name.

    A lock would not work: on NFS and FUSE, flock does not reach from one mount to another.
    """
    if not _sees_all_processes():
        return
    prefix = _prefix()
    with suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(prefix)]:
            # Earlier versions added no random digits.
            agent = re.fullmatch(r"(\d{1,9})-(\d+)(?:-[0-9a-f]+)?", name[len(prefix) :])
            if agent and _is_own(parent / name) and _is_dead(int(agent[1]), agent[2]):
                remove_scratch(parent / name)


def _sees_all_processes() -> bool:
    """Return whether /proc belongs to this PID namespace, and shows boot id and namespace."""
    try:
        is_own = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return False
    return is_own and bool(boot_id() and _namespace("pid"))


def _prefix() -> str:
    """Return the prefix of all folder names whose agents this process could see."""
    host = os.uname().nodename.replace("/", "_")
    return f"clusterrun-{host}-{boot_id()}-{_namespace('pid')}-{_namespace('time')}-"


def _namespace(kind: str) -> str:
    """Return the inode number of this process's namespace; "" if the kernel has none of this kind."""
    try:
        return re.sub(r"\D", "", str(Path(f"/proc/self/ns/{kind}").readlink()))
    except OSError:
        return ""


def _is_dead(pid: int, start_time: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # Another user's process is the agent only if that changed its user.
        pass
    # A process that hides its start time may be the agent.
    return _start_time(pid) not in ("", start_time)


def _start_time(pid: int) -> str:
    """Return the start time of a process, in ticks since boot; "" if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Field 22 of proc_pid_stat(5). Field 2 is a name that may contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[22 - 3] if len(fields) > 22 - 3 else ""


def _is_own(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
