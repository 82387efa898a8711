"""Native frames and locals of this node's ranks, by py-spy: asked for by a user, never waited for.

The children of a request are started at the user's first look; later looks show what they print.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import which

from clusterrun.domain.bounds import LONGEST_TEXT, as_text
from clusterrun.domain.ranks import GlobalRank
from clusterrun.policy.looks import LookAtNativeStacks, NativeStack
from clusterrun.processes import close_all_but, forked, status_of

SECONDS_FOR_ONE = 30.0
"""py-spy reads the symbols of all libraries of the process: torch's take seconds."""

SECONDS_TO_DIE = 1.0
"""For the children of a job that ends."""

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
        """End all that still runs."""
        for dump in self._dumps():
            dump.end()
        for dump in self._dumps():
            dump.reap(SECONDS_TO_DIE)
        self._requests.clear()

    def _dumps(self) -> "list[_Dump]":
        return [dump for request in self._requests.values() for dump in request.values()]

    def _begin(self, number: int, program: str, pids: Mapping[GlobalRank, int], now: float) -> None:
        while len(self._requests) >= MOST_KEPT:
            for dump in self._requests.pop(next(iter(self._requests))).values():
                dump.reap(0.0)
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
    """One py-spy, which leads a process group of its own."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str], now: float) -> None:
        self._child = 0
        self._until = now + SECONDS_FOR_ONE
        self._output = bytearray()
        self._errors = bytearray()
        self._open: dict[int, bytearray] = {}
        """By the pipe that is read into it."""
        try:
            self._child, output, errors = _start(words, environ)
        except OSError as error:
            self._errors += f"py-spy can't be started: {error.strerror}".encode()
            return
        self._open = {output: self._output, errors: self._errors}

    def is_over(self, now: float) -> bool:
        """Read what has been printed; end what takes too long."""
        for reading in list(self._open):
            self._read(reading)
        if self._open and now >= self._until:
            self.end()
            self._errors += f"py-spy took longer than {SECONDS_FOR_ONE:g} s".encode()
        return not self._open

    def shown(self, rank: int, most: int) -> NativeStack:
        """Return at most ``most`` characters; py-spy writes stacks or why there are none."""
        found = bool(self._output.strip())
        text = (self._output if found else self._errors).decode(errors="replace").strip()
        if len(text) > most:
            text = text[: most - len(LEFT_OUT)] + LEFT_OUT
        return NativeStack(rank, as_text(text or "py-spy has printed nothing"), found)

    def end(self) -> None:
        """Kill it, with what it has started."""
        for reading in list(self._open):
            self._read(reading)
        if self._open:
            # Its group exists: what holds the pipe has not ended.
            with suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
        for reading in self._open:
            os.close(reading)
        self._open.clear()

    def reap(self, seconds: float) -> None:
        """Wait for its end, at most for so long: its number may be another process's later."""
        if self._child and status_of(self._child, seconds) is not None:
            self._child = 0

    def _read(self, reading: int) -> None:
        kept = self._open[reading]
        with suppress(BlockingIOError):
            while chunk := os.read(reading, 1 << 16):
                # Four bytes at most for each character that is shown.
                kept += chunk[: max(0, 4 * LONGEST_TEXT - len(kept))]
            os.close(reading)
            del self._open[reading]
            # If it has not quite ended, the agent reaps it with other orphans.
            if not self._open:
                self.reap(0.0)


def _start(words: Sequence[str], environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Start a program; return its process id, and the pipes of its output and its errors.

    Raises:
        OSError: no process can be started.

    """
    pipes = []
    try:
        pipes += [os.pipe()]
        pipes += [os.pipe()]
        child = forked(partial(_become, words, environ, pipes[0][1], pipes[1][1]))
    except OSError:
        for reading, _ in pipes:
            os.close(reading)
        raise
    finally:
        for _, writing in pipes:
            os.close(writing)
    # Here, too: whichever comes first.
    with suppress(OSError):
        os.setpgid(child, child)
    (output, _), (errors, _) = pipes
    os.set_blocking(output, False)
    os.set_blocking(errors, False)
    return child, output, errors


def _become(words: Sequence[str], environ: Mapping[str, str], output: int, errors: int) -> None:
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        close_all_but({0, 1, 2})
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        # It goes on after exec: if the agent dies meanwhile, no other process ends this one.
        signal.alarm(round(SECONDS_FOR_ONE) + 1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execve(words[0], [*words], dict(environ))
    except OSError as error:
        os.write(2, f"py-spy can't be executed: {error.strerror}".encode())
