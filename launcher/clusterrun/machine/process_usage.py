"""What the kernel shows of a process: its state and use, and why it may not answer."""

from msgspec import Struct

from clusterrun.machine.tree import Tree

STATE, USER_TICKS, SYSTEM_TICKS, RESIDENT_PAGES = 0, 11, 12, 21
"""The fields of /proc/PID/stat after the command's name: proc_pid_stat(5), from field 3 on."""

FROZEN = "stopped"

WORDS = {"T": FROZEN, "t": "held by a debugger", "D": "waiting in the kernel", "Z": "exited"}
"""By the kernel's letter; a process that runs or sleeps is "running"."""


class Units(Struct, frozen=True):
    """Of the kernel's numbers: ticks in a second, and bytes of a page."""

    ticks: int
    page: int


class ProcessUsage(Struct, frozen=True):
    """One process, all its threads, without its children."""

    state: str
    cpu_seconds: float
    memory: int
    """Bytes, resident."""


def usage_of(tree: Tree, pid: int, units: Units) -> ProcessUsage | None:
    """Return what the process uses; None if it has ended. This waits for no lock of the process."""
    text = tree.text(f"proc/{pid}/stat")
    # The name may have blanks and parentheses.
    fields = text.rpartition(")")[2].split() if text else []
    if len(fields) <= RESIDENT_PAGES:
        return None
    ticks = int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    return ProcessUsage(
        WORDS.get(fields[STATE], "running"),
        ticks / units.ticks,
        int(fields[RESIDENT_PAGES]) * units.page,
    )


def why_unresponsive(tree: Tree, pid: int) -> str:
    """Return why a process may not answer, and what to do about it; "" if it has ended."""
    letter = tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()[:1]
    if not letter:
        return ""
    line = tree.text(f"proc/{pid}/cmdline").replace("\0", " ").strip()
    if WORDS.get(letter[0]) == FROZEN:
        return f"pid {pid} is stopped; kill -CONT {pid} continues it: {line}"
    return f"pid {pid} is busy: {line}"
