"""The native stacks of ranks, with their locals, which py-spy prints.

It is never waited for: its children are started at the user's first look, and later looks show what
they print.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shutil import which

from clusterrun.bounds import LONGEST_TEXT, GlobalRank, as_text
from clusterrun.policy.looks import LookAtNativeStacks, NativeStack
from clusterrun.processes import SECONDS_TO_DIE, AskedChild

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
