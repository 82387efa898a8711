"""The limit by which the kernel refuses another process, and its value."""

from __future__ import annotations

import errno

from .other_processes import text_of


def why_no_fork(error: OSError) -> str:
    """Return why a process could not be forked, in one line.

    Limits of processes are RLIMIT_NPROC (setrlimit(2)) and pids.max of this cgroup or one above it
    (cgroups(7)).
    """
    if error.errno == errno.EAGAIN:
        limits = [limit for limit in (_of_user(), _of_cgroup()) if limit]
        return "too many processes: " + (" or ".join(limits) or "the kernel allows no more")
    if error.errno == errno.ENOMEM:
        mode = text_of("/proc/sys/vm/overcommit_memory").strip()
        strict = " (vm.overcommit_memory is 2: each process counts with all its memory)"
        return "not enough memory for another process" + (strict if mode == "2" else "")
    return error.strerror or str(error)


def _of_user() -> str:
    for line in text_of("/proc/self/limits").splitlines():
        if line.startswith("Max processes"):
            soft = line[len("Max processes") :].split()[0]
            return "" if soft == "unlimited" else f"the user's limit is {soft} (ulimit -u)"
    return ""


def _of_cgroup() -> str:
    """Return the limit of the nearest cgroup that has one, and its file."""
    for line in text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        base = "/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/pids"
        if controllers and "pids" not in controllers.split(","):
            continue
        while True:
            file = f"{base}{path.rstrip('/')}/pids.max"
            most = text_of(file).strip()
            if most not in ("", "max"):
                return f"this cgroup's limit is {most} ({file})"
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
    return ""
