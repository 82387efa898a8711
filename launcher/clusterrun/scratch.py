"""A process's own folder in TMPDIR, which the next job removes if the process is killed.

The agent's is its job's scratch folder, for files that workers write for the launcher
(TORCHELASTIC_ERROR_FILE); a Python program has some for the functions that it calls.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterrun.processes import TimeLimited, boot_id

SECONDS_TO_ANSWER = 1.0
"""How long a file system may take; after that, workers get no error files."""


class Scratch:
    """The folder of one job. Each call waits ``seconds`` at most, even if the file system hangs."""

    def __init__(self, path: Path, seconds: float = SECONDS_TO_ANSWER) -> None:
        self.path = path
        self.files = TimeLimited(seconds)
        """Runs work on files of the folder."""
        self._owner: int | None = None

    def make(self, folders: Iterable[Path] = ()) -> bool:
        """Make the folder, and ``folders`` in it; return whether all exist.

        It is made again if a cleaner of temporary files has removed it.
        """
        return bool(self.files.run(partial(self._make, tuple(folders))))

    def remove(self) -> None:
        self.files.run(partial(remove_scratch, self.path))

    def _make(self, folders: Iterable[Path]) -> bool:
        try:
            with suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                # A file server may map root to another user.
                self._owner = self.path.lstat().st_uid
            found = self.path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != self._owner:
                # Another user made it.
                return False
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        return True


def remove_scratch(directory: Path) -> None:
    """Remove ``directory`` and all in it, as far as that is possible; links are not followed."""
    # fwalk calls itself for each level of folders.
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


def own_folder(environ: Mapping[str, str]) -> Path:
    """Return the path of this process's folder in TMPDIR; the folder is not made.

    Its name is ``clusterrun-HOST-BOOT-PIDS-TIMES-PID-START``: host, boot id, PID and time namespace,
    process id, and start time.
    """
    parent = Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108 - the folder is closed to others
    return parent / f"{_prefix()}{os.getpid()}-{_started(os.getpid())}"


def remove_leftovers(parent: Path) -> None:
    """Remove the folders in ``parent`` that killed jobs have left.

    Only those whose agents this process would see if they lived: same host, boot and namespaces.
    Containers and hosts that share TMPDIR do not remove each other's folders. A job that is just
    starting is safe, too: its folder gets its name when it is made, and its agent lives.

    A lock is no alternative: on NFS and FUSE, flock does not reach from one mount to another.
    """
    if not _sees_all_processes():
        return
    prefix = _prefix()
    with suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(prefix)]:
            owner = re.fullmatch(r"(\d{1,9})-(\d+)(?:-\d+)?", name[len(prefix) :])
            if owner and _is_this_user_s(parent / name) and _is_dead(int(owner[1]), owner[2]):
                remove_scratch(parent / name)


def _sees_all_processes() -> bool:
    """Return whether /proc is that of this PID namespace, and shows boot id and namespace."""
    try:
        is_own = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return False
    return is_own and bool(boot_id() and _namespace("pid"))


def _prefix() -> str:
    """Return the beginning of the names of all folders whose agents this process would see."""
    host = os.uname().nodename.replace("/", "_")
    return f"clusterrun-{host}-{boot_id()}-{_namespace('pid')}-{_namespace('time')}-"


def _namespace(kind: str) -> str:
    """Return the number of this process's namespace; "" where the kernel has none."""
    try:
        return re.sub(r"\D", "", str(Path(f"/proc/self/ns/{kind}").readlink()))
    except OSError:
        return ""


def _is_dead(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # Another user's process: not the agent's, unless it changed its user.
        pass
    # A process that hides its start time may be the agent.
    return _started(pid) not in ("", started)


def _started(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" if it is unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # Field 22 of proc_pid_stat(5); the second is a name, which may hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[22 - 3] if len(fields) > 22 - 3 else ""


def _is_this_user_s(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
