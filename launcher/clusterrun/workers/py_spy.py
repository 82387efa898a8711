"""py-spy, which reads the stacks of a process from outside: its path, and one run of it."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import which
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from clusterrun.processes import SECONDS_TO_DIE, set_parent_death_signal

MISSING = (
    "has no py-spy, neither on its agent's PATH nor next to its Python: run pip install py-spy"
    " there"
)


def py_spy_program(environ: Mapping[str, str], interpreter: Path) -> Path | None:
    """Return the path of py-spy, on the agent's PATH or beside its Python."""
    folders = (environ.get("PATH", ""), str(interpreter.parent))
    found = (which("py-spy", path=each) for each in folders)
    return next((Path(each) for each in found if each), None)


class PySpy:
    """One run of py-spy, which starts at once."""

    def __init__(self, program: Path, *arguments: str) -> None:
        self.printed = self.errors = ""
        """Its standard output and error; ``errors`` has the reason if it can't be started."""
        self.is_late = False
        self._process: Popen[bytes] | None = None
        parent = os.getpid()
        try:
            self._process = Popen(
                [str(program), *arguments],
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                preexec_fn=lambda: set_parent_death_signal(parent),  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            self.errors = f"py-spy can't be executed: {error.strerror}"

    def wait(self, until: float) -> None:
        """Read what it prints until it ends; at a monotonic time, kill it and set ``is_late``.

        If several hang in the kernel, waiting for all of them with the same ``until`` takes
        ``SECONDS_TO_DIE`` longer.
        """
        if self._process is None:
            return
        printed = errors = b""
        try:
            printed, errors = self._process.communicate(timeout=max(0.0, until - time.monotonic()))
        except TimeoutExpired:
            # It may have ended while another one was waited for.
            self.is_late = self._process.poll() is None
            self._process.kill()
            seconds = until - time.monotonic() if self.is_late else 0.0
            # A process that hangs in the kernel survives.
            with suppress(TimeoutExpired):
                printed, errors = self._process.communicate(timeout=SECONDS_TO_DIE + seconds)
        self.printed = printed.decode(errors="replace")
        self.errors = errors.decode(errors="replace")
