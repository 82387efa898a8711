"""Removes the scratch folders that killed jobs have left in TMPDIR.

A folder is named ``clusterrun-HOST-BOOT-PIDS-TIMES-PID-START`` after the agent that made it: host,
boot id, PID and time namespace, process id, and start time. A folder is removed only if this process
would see the agent if it lived: same host, boot and namespaces. Containers and hosts that share
TMPDIR do not remove each other's folders. A job that is just starting is safe, too: its folder gets
this name when it is made, and its agent lives.

A lock is no alternative: on NFS and FUSE, flock does not reach from one mount to another.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from clusterrun.workers.fork_server.system.other_processes import stat_fields, text_of
from clusterrun.workers.scratch import remove_scratch

_START_FIELD = 22 - 3
"""proc(5) counts from 1, and ``stat_fields`` begins with the third."""


def own_folder(environ: Mapping[str, str]) -> Path:
    """Return the path of this process's folder in TMPDIR; the folder is not made."""
    parent = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the folder is closed to others
    return parent / f"{_prefix()}{os.getpid()}-{_started(os.getpid())}"


def remove_leftovers(parent: Path) -> None:
    """Remove the folders in ``parent`` that belong to no living process."""
    if not _sees_all_processes():
        return
    prefix = _prefix()
    with suppress(OSError), os.scandir(parent) as entries:
        for name in [entry.name for entry in entries if entry.name.startswith(prefix)]:
            owner = re.fullmatch(r"(\d{1,9})-(\d+)", name[len(prefix) :])
            if owner and _is_this_user_s(parent / name) and _is_dead(int(owner[1]), owner[2]):
                remove_scratch(parent / name)


def _sees_all_processes() -> bool:
    """Return whether /proc is that of this PID namespace, and shows boot id and namespace."""
    try:
        is_own = str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return False
    return is_own and bool(_boot() and _namespace("pid"))


def _prefix() -> str:
    """Return the beginning of the names of all folders whose agents this process would see."""
    host = os.uname().nodename.replace("/", "_")
    return f"clusterrun-{host}-{_boot()}-{_namespace('pid')}-{_namespace('time')}-"


def _boot() -> str:
    return text_of("/proc/sys/kernel/random/boot_id").strip()


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
    return next(iter(stat_fields(pid)[_START_FIELD:]), "")


def _is_this_user_s(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.geteuid()
    except OSError:
        return False
