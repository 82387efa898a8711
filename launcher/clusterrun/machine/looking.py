"""What a user's look finds of the processes of this node: their state and use, and native stacks.

py-spy prints native frames and locals. It is never waited for: its children are started at the
user's first look, and later looks show what they print.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which

from msgspec import Struct

from clusterrun.domain.bounds import LONGEST_TEXT, as_text
from clusterrun.domain.ranks import GlobalRank
from clusterrun.machine.tree import Tree
from clusterrun.policy.looks import LookAtNativeStacks, NativeStack
from clusterrun.processes import SECONDS_TO_DIE, AskedChild

STATE, USER_TICKS, SYSTEM_TICKS, RESIDENT_PAGES = 0, 11, 12, 21
"""The fields of /proc/PID/stat after the command's name: proc_pid_stat(5), from field 3 on."""

FROZEN = "stopped"

WORDS = {"T": FROZEN, "t": "held by a debugger", "D": "waiting in the kernel", "Z": "exited"}
"""By the kernel's letter; a process that runs or sleeps is "running"."""


SECONDS_FOR_ONE = 30.0
"""py-spy reads the symbols of all libraries of the process: torch's take seconds."""

MOST_OF_A_NODE = 1 << 18
"""Characters that a node answers: the coordinator passes on those of all nodes."""

MOST_KEPT = 4
"""Requests whose answers are kept: several users may look."""

LEFT_OUT = "\n(the rest is left out)"

MISSING = "has no py-spy, on its agent's PATH or beside its Python: type pip install py-spy there"

Found = str | None
Find = Callable[[], Found]

Answer = tuple[tuple[NativeStack, ...], bool, str]
"""The stacks, whether they are all, and why there are none."""


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


def why_silent(tree: Tree, pid: int) -> str:
    """Return why a process may not answer, and what to do about it; "" if it has ended."""
    letter = tree.text(f"proc/{pid}/stat").rpartition(")")[2].split()[:1]
    if not letter:
        return ""
    line = tree.text(f"proc/{pid}/cmdline").replace("\0", " ").strip()
    if WORDS.get(letter[0]) == FROZEN:
        return f"pid {pid} is stopped; kill -CONT {pid} continues it: {line}"
    return f"pid {pid} is busy: {line}"


class PySpy:
    """Runs py-spy for one request at a time; others wait for it."""

    def __init__(
        self, environ: Mapping[str, str], interpreter: Path, within_time: Callable[[Find], Found]
    ) -> None:
        """Take the agent's environment, and its Python: py-spy may lie beside it.

        ``within_time`` calls what looks for files; None if it takes too long.
        """
        self._environ = environ
        self._interpreter = interpreter
        self._within_time = within_time
        self._requests: dict[int, dict[GlobalRank, _Dump]] = {}
        """By the user's number and rank."""

    def look(self, look: LookAtNativeStacks, pids: Mapping[GlobalRank, int], now: float) -> Answer:
        """Start py-spy for a number that is new, and return what has been printed once all is.

        Args:
            look: what the user asks.
            pids: process ids of the ranks that it is about, those that run here.
            now: a monotonic clock, in seconds.

        """
        if look.number not in self._requests:
            if not pids:
                return (), True, ""
            program = self._within_time(self._program)
            if program is None:
                return (), True, MISSING
            if [dump for dump in self._dumps() if not dump.is_over(now)]:
                return (), False, ""
            self._begin(look.number, program, pids, now)
        dumps = self._requests[look.number]
        # Each is read: one that is not blocks when its pipe is full.
        if [dump for dump in dumps.values() if not dump.is_over(now)]:
            return (), False, ""
        most = min(LONGEST_TEXT, MOST_OF_A_NODE // len(dumps))
        return tuple(dump.shown(rank, most) for rank, dump in dumps.items()), True, ""

    def close(self) -> None:
        """End all that still runs: waits a second at most."""
        dumps = self._dumps()
        for dump in dumps:
            dump.end(SECONDS_TO_DIE / len(dumps))
        self._requests.clear()

    def _dumps(self) -> "list[_Dump]":
        return [dump for request in self._requests.values() for dump in request.values()]

    def _begin(self, number: int, program: str, pids: Mapping[GlobalRank, int], now: float) -> None:
        while len(self._requests) >= MOST_KEPT:
            # They are over, because another request is begun only then.
            for dump in self._requests.pop(next(iter(self._requests))).values():
                dump.end(0.0)
        self._requests[number] = {
            rank: _Dump(
                [program, "dump", "--native", "--locals", "--pid", str(pid)], self._environ, now
            )
            for rank, pid in pids.items()
        }

    def _program(self) -> str | None:
        return which("py-spy", path=self._environ.get("PATH", "")) or which(
            "py-spy", path=str(self._interpreter.parent)
        )


class _Dump:
    """What one py-spy has printed, once it has ended."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], now: float) -> None:
        self._child: AskedChild | None = None
        self._is_over = False
        self._text = ""
        self._found = False
        try:
            self._child = AskedChild(words, SECONDS_FOR_ONE, environ, now)
        except OSError as error:
            self._is_over = True
            self._text = f"py-spy can't be started: {error.strerror}"

    def is_over(self, now: float) -> bool:
        """Read what has been printed; end what takes too long."""
        if self._child is None or self._is_over:
            return self._is_over
        answer = self._child.answer(now)
        if answer is None:
            return False
        self._is_over = True
        self._found = bool(answer.strip())
        printed = answer if self._found else self._child.errors
        late = f"py-spy took longer than {SECONDS_FOR_ONE:g} s" if self._child.is_late else ""
        self._text = "\n".join(filter(None, [printed.decode(errors="replace").strip(), late]))
        # It may outlive that, in the kernel: its end is not waited for.
        self._child.end(0.0)
        return True

    def shown(self, rank: int, most: int) -> NativeStack:
        """Return at most ``most`` characters; py-spy writes stacks or why there are none."""
        text = self._text
        if len(text) > most:
            text = text[: most - len(LEFT_OUT)] + LEFT_OUT
        return NativeStack(rank, as_text(text or "py-spy has printed nothing"), self._found)

    def end(self, seconds: float) -> None:
        """Kill it, with what it has started, and wait for its end, ``seconds`` at most."""
        if self._child:
            self._child.end(seconds)
