"""A whole launch as a child of this process: a run of a benchmark, a check of nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, NamedTuple

from clusterrun.errors import exit_code_of_signal
from clusterrun.workers.fork_server.this_process import die_with_parent

CLUSTERRUN = (sys.executable, "-P", "-m", "clusterrun")
"""What starts this very clusterrun."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""A launch takes one that the terminal has sent to both of us for one."""


class LaunchEnd(NamedTuple):
    """How a child has ended."""

    code: int
    printed: bytes
    """Its output, if that went to no file."""
    interrupted: int
    """The exit code of the signal that this process has got meanwhile; 0: of none."""


def run_to_end(
    words: Sequence[str], environ: Mapping[str, str], output: IO[bytes] | None = None
) -> LaunchEnd:
    """Run a program to its end, also after a signal, which is passed on to it.

    Args:
        words: the program and its arguments.
        environ: its environment.
        output: gets its output and its errors; None: output is returned, errors are ours.

    Raises:
        OSError: it can't be started.

    """
    parent = os.getpid()
    process = subprocess.Popen(
        words,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output is None else output,
        stderr=None if output is None else subprocess.STDOUT,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
    )
    received = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    numbers = [each for each in PASSED_ON if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    printed, _ = process.communicate()
    for number, handler in before.items():
        signal.signal(number, handler)
    code = process.returncode
    return LaunchEnd(
        exit_code_of_signal(-code) if code < 0 else code,
        printed or b"",
        exit_code_of_signal(received[0]) if received else 0,
    )
