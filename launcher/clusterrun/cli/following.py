"""Shows a submitted job until it ends, or until the user leaves it."""

import shlex
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from types import FrameType

from clusterrun.cli.printing import complain
from clusterrun.errors import exit_code_of_signal
from clusterrun.submitting.asking import ask
from clusterrun.submitting.scheduler import Scheduler
from clusterrun.submitting.watching import End, Notice, Printed, Watch


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
    if with_output and (words := scheduler.show_output(job_id)):
        complain(f"clusterrun: what job {job_id} prints is shown by:\n  {shlex.join(words)}")
    asking = partial(ask, environ=environ)
    watch = Watch(scheduler, job_id, asking, time.sleep, with_output=with_output)
    try:
        return _show(watch, job_id, is_quiet=is_quiet)
    except _Left as left:
        complain(
            f"\nclusterrun: job {job_id} goes on; to see it again: clusterrun logs {job_id}"
            f"; to end it: clusterrun cancel {job_id}"
        )
        return exit_code_of_signal(left.args[0])


def _leave(number: int, _frame: FrameType | None) -> None:
    raise _Left(number)


def _show(watch: Watch, job_id: str, *, is_quiet: bool) -> int:
    for event in watch.events():
        match event:
            case Printed(_, is_error, data):
                stream = sys.stderr if is_error else sys.stdout
                stream.buffer.write(data)
                stream.flush()
            case Notice(text):
                if not is_quiet:
                    complain(f"clusterrun: job {job_id}: {text}")
            case End(text, exit_code):
                if not is_quiet or exit_code:
                    complain(f"clusterrun: {text}")
                return exit_code
    raise AssertionError("a watch ends with an End")
