"""Start ``clusterrun`` itself as a child process, for a benchmark's runs and for doctor's checks."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, Self

from clusterrun.errors import exit_code_of_signal
from clusterrun.processes import set_parent_death_signal
from clusterrun.signals import ENDING_SIGNALS

CLUSTERRUN = (sys.executable, "-P", "-m", "clusterrun")
"""The command of the clusterrun that this process has imported."""


class ChildLaunches:
    """Runs launches one after the other; inside its ``with`` block, it forwards signals to them.

    If a terminal sends a signal to parent and child, the child gets it twice, and counts it once.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._running: subprocess.Popen[bytes] | None = None
        self._received = 0
        self._old_handlers: dict[int, object] = {}

    @property
    def interrupted(self) -> int:
        """The exit code for the first signal that this process has received, 0 without one."""
        return exit_code_of_signal(self._received) if self._received else 0

    def __enter__(self) -> Self:
        numbers = [each for each in ENDING_SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
        self._old_handlers = {number: signal.signal(number, self._forward) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def run(self, argv: Sequence[str], output: IO[bytes] | None = None) -> tuple[int, bytes]:
        """Run a program to its end, even after a signal; return its exit code and output.

        Args:
            argv: the program and its arguments.
            output: receives both standard streams. If it is None, standard output is returned, and
                standard error is inherited.

        Raises:
            OSError: the program can't be started.

        """
        parent = os.getpid()
        self._running = subprocess.Popen(
            argv,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=None if output is None else subprocess.STDOUT,
            preexec_fn=lambda: set_parent_death_signal(parent, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
        )
        if self._received:
            # The signal came before there was a process to forward it to.
            self._running.send_signal(self._received)
        printed, _ = self._running.communicate()
        code = self._running.returncode
        self._running = None
        return exit_code_of_signal(-code) if code < 0 else code, printed or b""

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._received = self._received or number
        if self._running is not None:
            self._running.send_signal(number)
