"""Runs a program; if an exception ends it, pdb opens at that place: ``--pdb``.

    PYTHON -u post_mortem.py TERMINAL SCRIPT ARGS

The first rank that fails gets the terminal. A worker is in a session of its own, where the kernel
lets it read and write any terminal that it opens by name.
"""

from __future__ import annotations

import fcntl
import os
import pdb  # noqa: T100 - what the user asked for
import signal
import sys
from functools import partial

from wrapped_program import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the program; exit with 1 if it fails, once the user has left pdb."""
    terminal, *words = sys.argv[1:]
    run(words, partial(examine, terminal))


def examine(terminal: str, traceback: TracebackType) -> None:
    """Open pdb on the terminal; return when the user leaves it, or another rank's user has."""
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # Our exit would end the job, and the other rank with it.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    sys.stdout.flush()
    sys.stdin = open(descriptor, closefd=False)
    sys.stdout = open(descriptor, "w", closefd=False)
    # pdb would take Ctrl-C for the end of its line alone.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(f"clusterrun: rank {os.environ['RANK']} has failed; q leaves pdb and ends the job")
    pdb.post_mortem(traceback)


main()
