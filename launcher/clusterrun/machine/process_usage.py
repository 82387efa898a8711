"""State and resource usage of a process, from /proc."""

from msgspec import Struct

from clusterrun.machine.tree import Tree

STATE, USER_TICKS, SYSTEM_TICKS, RESIDENT_PAGES = 0, 11, 12, 21
"""Indices of fields of /proc/PID/stat, counted from the one after the command's name (proc_pid_stat(5))."""

STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting in the kernel", "Z": "exited"}
"""By the kernel's letter. A process in another state, such as S (sleeping), is called "running"."""


class Units(Struct, frozen=True):
    """The kernel's units."""

    ticks: int
    """Ticks per second."""
    page: int
    """Bytes."""


class ProcessUsage(Struct, frozen=True):
    """One process with all its threads, without its children."""

    state: str
    cpu_seconds: float
    memory: int
    """Resident bytes."""


def usage_of(tree: Tree, pid: int, units: Units) -> ProcessUsage | None:
    """Return the usage of a process; None if it has exited. Reading /proc/PID/stat never blocks on its locks."""
    text = tree.text(f"proc/{pid}/stat")
    # The name may contain spaces and parentheses.
    fields = text.rpartition(")")[2].split() if text else []
    if len(fields) <= RESIDENT_PAGES:
        return None
    ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    return ProcessUsage(
        STATES.get(fields[STATE], "running"),
        ticks / units.ticks,
        int(fields[RESIDENT_PAGES]) * units.page,
    )


def why_unresponsive(tree: Tree, pid: int) -> str:
    """Return why a process may not answer, and what to do about it; "" if it has exited."""
    letter = tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()[:1]
    if not letter:
        return ""
    line = tree.text(f"proc/{pid}/cmdline").replace("\0", " ").strip()
    if letter[0] == "T":
        return f"pid {pid} is stopped; kill -CONT {pid} continues it: {line}"
    return f"pid {pid} is busy: {line}"
