"""A whole launch as a child of this process: a run of a benchmark, a check of nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from clusterrun.errors import exit_code_of_signal
from clusterrun.workers.fork_server.this_process import die_with_parent

CLUSTERRUN = (sys.executable, "-P", "-m", "clusterrun")
"""What starts this very clusterrun."""


def run_to_end(
    words: Sequence[str], environ: Mapping[str, str], output: IO[bytes] | None = None
) -> tuple[int, bytes]:
    """Run a program to its end; return its exit code, and what it has printed to its output.

    Args:
        words: the program and its arguments.
        environ: its environment.
        output: gets its output and its errors; None: output is returned, errors are ours.

    Raises:
        OSError: it can't be started.
        KeyboardInterrupt: the user has typed Ctrl-C; the program has ended.

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
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        # The terminal has sent it to the program, too.
        process.wait()
        raise
    code = process.returncode
    return exit_code_of_signal(-code) if code < 0 else code, printed or b""
