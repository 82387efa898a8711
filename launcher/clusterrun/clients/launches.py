"""Whole launches as children of this process: the runs of a benchmark, a check of nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, Self

from clusterrun.errors import exit_code_of_signal
from clusterrun.processes import set_parent_death_signal

CLUSTERRUN = (sys.executable, "-P", "-m", "clusterrun")
"""What starts this very clusterrun."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A launch takes one that the terminal has sent to both of us for one."""


class ChildLaunches:
    """Runs launches one after the other; as a context, it passes signals on to them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Take the environment of the launches."""
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None
        self._received = 0
        self._before: dict[int, object] = {}

    @property
    def interrupted(self) -> int:
        """The exit code of the first signal that this process has got; 0: of none."""
        return exit_code_of_signal(self._received) if self._received else 0

    def __enter__(self) -> Self:
        numbers = [each for each in PASSED_ON if signal.getsignal(each) != signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._pass_on) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, words: Sequence[str], output: IO[bytes] | None = None) -> tuple[int, bytes]:
        """Run a program to its end, also after a signal; return its exit code, and its output.

        Args:
            words: the program and its arguments.
            output: gets its output and its errors; None: output is returned, errors are ours.

        Raises:
            OSError: it can't be started.

        """
        parent = os.getpid()
        self._running = subprocess.Popen(
            words,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=None if output is None else subprocess.STDOUT,
            preexec_fn=lambda: set_parent_death_signal(parent, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        if self._received:
            # It came before there was a process to pass it on to.
            self._running.send_signal(self._received)
        printed, _ = self._running.communicate()
        code = self._running.returncode
        self._running = None
        return exit_code_of_signal(-code) if code < 0 else code, printed or b""

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._received = self._received or number
        if self._running is not None:
            self._running.send_signal(number)
