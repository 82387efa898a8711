"""Shows a submitted job until it ends, or until the user leaves it."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

from clusterrun.cli.printing import complain
from clusterrun.errors import exit_code_of_signal
from clusterrun.submitting.scheduler import Scheduler
from clusterrun.submitting.watching import End, Notice, Printed, Watch

SECONDS_TO_SHOW_REST = 10.0
"""For a command that shows what a job has printed, after the end of the job."""


class _Left(Exception):
    """The user has had enough; the argument is the signal's number."""


def follow(
    scheduler: Scheduler,
    job_id: str,
    environ: Mapping[str, str],
    *,
    with_output: bool,
    is_quiet: bool = False,
) -> int:
    """Wait for the end of a job, and return its exit code; that of a signal if one came first.

    The states go to standard error unless ``is_quiet``.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    asking = partial(scheduler.ask, environ=environ)
    watch = Watch(scheduler, job_id, asking, time.sleep, with_output=with_output)
    shower = _Shower(scheduler.show_output(job_id, environ) if with_output else (), environ)
    try:
        return _show(watch, job_id, shower, is_quiet=is_quiet)
    except _Left as left:
        complain(
            f"\nclusterrun: job {job_id} goes on; to see it again: clusterrun logs {job_id}"
            f"; to end it: clusterrun cancel {job_id}"
        )
        return exit_code_of_signal(left.args[0])
    finally:
        shower.end()


class _Shower:
    """The command that shows what a job prints, if it is not written to files."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._words = words
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def show(self) -> None:
        """Start the command, unless it runs."""
        if self._words and (self._process is None or self._process.poll() is not None):
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, env=dict(self._environ)
            )

    def show_rest(self) -> None:
        """Let the command show what is left of a job that has ended."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(SECONDS_TO_SHOW_REST)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _leave(number: int, _frame: FrameType | None) -> None:
    raise _Left(number)


def _show(watch: Watch, job_id: str, shower: _Shower, *, is_quiet: bool) -> int:
    for event in watch.events():
        match event:
            case Printed(_, is_error, data):
                stream = sys.stderr if is_error else sys.stdout
                stream.buffer.write(data)
                stream.flush()
            case Notice(text, is_running):
                if not is_quiet:
                    complain(f"clusterrun: job {job_id}: {text}")
                if is_running:
                    shower.show()
            case End(text, exit_code):
                shower.show_rest()
                if not is_quiet or exit_code:
                    complain(f"clusterrun: {text}")
                return exit_code
    raise AssertionError("a watch ends with an End")
