"""What a process inherits from the one that starts it, by name: the key of a warm fork server."""

import os
import resource
from collections.abc import Mapping
from pathlib import Path

from clusterrun.workers.fork_server.other_processes import stat_fields

_STATUS = ("Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_STATUS_OF_THREADS = ("SigIgn", "Cpus_allowed_list", "Mems_allowed_list", "CoreDumping")
"""Lines of /proc/self/status (proc(5))."""

_TERMINAL_FIELD = 7 - 3
"""proc(5) counts from 1, and ``stat_fields`` begins with the third."""

_CHANGES_BY_ITSELF = frozenset({"_", "OLDPWD", "SHLVL"})
"""Variables that a shell sets before each command."""


def inheritance(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Return all that a child of this process inherits.

    Args:
        environment: the variables that it gets.
        python: its interpreter.

    Returns:
        Texts by name: two processes with equal texts start alike.

    """
    return {
        "interpreter": f"{python} {_stamp(python)}",
        "clusterrun": _stamp(__file__),
        "folder": inherited_folder(),
        "user": f"{os.getresuid()} {os.getresgid()}",
        "umask": _status("Umask"),
        "terminal": _terminal(),
        "priority": f"{os.getpriority(os.PRIO_PROCESS, 0)} {os.sched_getscheduler(0)}"
        f" {os.sched_getparam(0).sched_priority}",
        "personality": _text("/proc/self/personality"),
        "core dumps": _text("/proc/self/coredump_filter"),
        "OOM score": _text("/proc/self/oom_score_adj"),
        "cgroup": _text("/proc/self/cgroup"),
        **{f"limit {name}": f"{resource.getrlimit(n)}" for name, n in _limits().items()},
        **{f"status {name}": _status(name) for name in (*_STATUS, *_STATUS_OF_THREADS)},
        **{f"namespace {each.name}": f"{each.readlink()}" for each in _namespaces()},
        **{
            f"variable {name}": value
            for name, value in environment.items()
            if name not in _CHANGES_BY_ITSELF
        },
    }


def inherited_folder() -> str:
    """Return the current folder, with its device and inode; "deleted" if it is."""
    try:
        found = Path.cwd().stat()
    except FileNotFoundError:
        return "deleted"
    return f"{Path.cwd()} {found.st_dev}:{found.st_ino}"


def _terminal() -> str:
    """Return the controlling terminal with its session; "" if there is none."""
    number = int(next(iter(stat_fields(os.getpid())[_TERMINAL_FIELD:]), "0"))
    return f"{number} {os.getsid(0)}" if number else ""


def _limits() -> dict[str, int]:
    return {name: n for name, n in vars(resource).items() if name.startswith("RLIMIT_")}


def _namespaces() -> list[Path]:
    try:
        return sorted(Path("/proc/self/ns").iterdir())
    except OSError:
        return []


def _status(name: str) -> str:
    lines = _text("/proc/self/status").splitlines()
    return next((line for line in lines if line.startswith(f"{name}:")), "")


def _stamp(path: str) -> str:
    try:
        found = Path(path).stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
