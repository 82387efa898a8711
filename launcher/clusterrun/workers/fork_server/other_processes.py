"""Other processes: what /proc shows of them, and signals to them."""

from __future__ import annotations

import _signal as signal
import errno
import os
import time

SECONDS_TO_CLEAN_UP = 5.0
"""A process that SIGKILL has not ended after this long hangs in the kernel (state D)."""

SECONDS_BETWEEN_LOOKS = 0.01


def survives(pid: int, number: int) -> bool:
    """Tell whether ``pid`` handles or ignores signal ``number`` (SigCgt, SigIgn: proc(5)).

    SIGQUIT must be handled: a process that ignores it prints no stacks.
    """
    keys = ("SigCgt:",) if number == signal.SIGQUIT else ("SigCgt:", "SigIgn:")
    lines = [line.split() for line in text_of(f"/proc/{pid}/status").splitlines()]
    masks = [int(line[1], 16) for line in lines if line and line[0] in keys]
    return any(mask >> (number - 1) & 1 for mask in masks)


def children_of(pid: int) -> list[int]:
    """Return the living processes whose parent is ``pid``."""
    return [child for child in every_child_of(pid) if state_and_parent(child)[0] not in "ZX"]


def every_child_of(pid: int) -> list[int]:
    """Return the processes whose parent is ``pid``, also those that wait to be reaped."""
    try:
        # Not "ascii": Python would import a module for it, which scripts then find imported.
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as children:
            candidates = [int(number) for number in children.read().split()]
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN
        candidates = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [child for child in candidates if state_and_parent(child)[1] == pid]


def group_of(leader: int) -> list[int]:
    """Return the processes of the group that ``leader`` leads, itself first."""
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != leader]
    return [leader, *(pid for pid in others if stat_fields(pid)[2] == str(leader))]


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return a process's state letter and parent; ("X", 0) if it is gone."""
    state, parent, *_ = stat_fields(pid)
    return state, int(parent)


def stat_fields(pid: int) -> list[str]:
    """Return the fields that proc(5) counts from 3: state, parent, group ...; X, 0, 0 if it is gone."""
    # The name in parentheses may hold spaces and parentheses of its own.
    return text_of(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["X", "0", "0"]


def describe(pid: int) -> str:
    """Return "pid 12 (python, state D in nfs_wait)" for a process that SIGKILL does not end."""
    state, _parent = state_and_parent(pid)
    name, wait = (text_of(f"/proc/{pid}/{file}").strip() or "?" for file in ("comm", "wchan"))
    return f"pid {pid} ({name}, state {state} in {wait})"


def work_done(pid: int) -> float:
    """Return a number that changes while a process computes or reads: CPU time and bytes."""
    fields = stat_fields(pid)
    if len(fields) <= 12:
        return 0.0
    _, _, read = text_of(f"/proc/{pid}/io").partition("\n")[0].partition(" ")
    # The file belongs to the process's user, and may be unreadable.
    return float(int(fields[11]) + int(fields[12]) + int(read or 0))


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Signal a child that has not been reaped; or its group, which it may not have formed yet."""
    if group:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return
        else:
            return
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def kill_children() -> None:
    """SIGKILL every child, those included that have become ours when their parents died.

    Only children are signalled: until they are reaped, their pids can't belong to other processes.
    Their own children become ours when they die; the next call kills those.
    """
    for pid in children_of(os.getpid()):
        send_signal(pid, signal.SIGKILL)


def end_children() -> None:
    """Kill and reap all children, new ones too, for at most ``SECONDS_TO_CLEAN_UP``."""
    deadline = time.monotonic() + SECONDS_TO_CLEAN_UP
    while time.monotonic() < deadline:
        # All that have ended at once: this shortens the list of children to look through.
        try:
            while os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is not None:
                pass
        except ChildProcessError:
            return
        kill_children()
        time.sleep(SECONDS_BETWEEN_LOOKS)


def text_of(path: str) -> str:
    """Return the text of a file in /proc or /sys; "" if it can't be read.

    Names of processes may be in any encoding. Without one, Python before 3.10 imports a module to
    find the default.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


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
