"""Other processes, as /proc shows them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import TextIO
else:
    import _signal as signal


def _opened(path: str) -> TextIO:
    """Open a file of the kernel's; names of processes may be in any encoding.

    Without one, Python before 3.10 would import a module to find out.
    """
    return open(path, encoding="utf-8", errors="replace")


def survives(pid: int, number: int) -> bool:
    """Tell whether ``pid`` catches or ignores signal ``number`` (SigCgt, SigIgn: proc(5)).

    SIGQUIT must be caught: ignoring it prints no stacks.
    """
    keys = ("SigCgt:",) if number == signal.SIGQUIT else ("SigCgt:", "SigIgn:")
    try:
        with _opened(f"/proc/{pid}/status") as status:
            lines = [line.split() for line in status]
    except OSError:
        return False
    return any(int(line[1], 16) >> (number - 1) & 1 for line in lines if line[0] in keys)


def allowed_cpus() -> str:
    """Return the CPUs that this process may use, "0-3,8"; "" where the kernel doesn't say."""
    return status_of_this_process("Cpus_allowed_list")


def children_of(pid: int) -> list[int]:
    """Return the living processes whose parent is ``pid``."""
    return [child for child in every_child_of(pid) if state_and_parent(child)[0] not in "ZX"]


def every_child_of(pid: int) -> list[int]:
    """Return the processes whose parent is ``pid``, those included that wait to be reaped."""
    try:
        with _opened(f"/proc/{pid}/task/{pid}/children") as children:
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
    """Return what proc(5) numbers from 3 on: state, parent, group ...; X, 0, 0 if it is gone."""
    try:
        with _opened(f"/proc/{pid}/stat") as stat:
            # The name in parentheses may hold spaces and parentheses of its own.
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return ["X", "0", "0"]


def describe(pid: int) -> str:
    """Return "pid 12 (python, state D in nfs_wait)" for a process that won't die."""

    def read(name: str) -> str:
        try:
            with _opened(f"/proc/{pid}/{name}") as file:
                return file.read().strip()
        except OSError:
            return "?"

    state, _parent = state_and_parent(pid)
    return "pid {} ({}, state {} in {})".format(pid, read("comm"), state, read("wchan"))


def work_done(pid: int) -> float:
    """Return a number that changes while a process computes or reads: CPU time and bytes."""
    fields = stat_fields(pid)
    if len(fields) <= 12:
        return 0.0
    try:
        with _opened(f"/proc/{pid}/io") as io:
            read = int(io.readline().split()[1])
    except (OSError, IndexError):
        read = 0  # not ours to see
    return float(int(fields[11]) + int(fields[12]) + read)


def status_of_this_process(key: str) -> str:
    """Return a line of /proc/self/status without its key; "" where the kernel has none."""
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith(key + ":"):
            return line[len(key) + 1 :].strip()
    return ""


def text_of(path: str) -> str:
    """Return what is in a file of the kernel's; "" if there is none."""
    try:
        with _opened(path) as file:
            return file.read()
    except OSError:
        return ""
