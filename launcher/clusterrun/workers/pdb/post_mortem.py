"""Runs a program and opens pdb at the exception that ends it: ``--pdb``.

    PYTHON -u post_mortem.py TERMINAL SCRIPT ARGS
    PYTHON -u post_mortem.py TERMINAL -m MODULE ARGS

It runs in the job's interpreter: Python 3.8 or newer, with the standard library only. The first rank that
fails gets the terminal. A worker has its own session, in which the kernel lets it read and write any
terminal that it opens by name.
"""

from __future__ import annotations

import fcntl
import os
import pdb  # noqa: T100 - what the user asked for
import runpy
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the program as ``python -u PROGRAM`` would; if it fails, exit with 1 after pdb.

    An exception is printed as Python prints it, without this file's frames.
    """
    terminal, *words = sys.argv[1:]
    try:
        run(words)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        traceback = traceback_of_program(error)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        if traceback is not None:
            examine(terminal, traceback)
        sys.exit(1)


def run(words: list[str]) -> None:
    """Run the script or module that ``words`` name, with their arguments."""
    is_module = words[0] == "-m"
    sys.argv[:] = words[1:] if is_module else words
    # Without -P, Python has put this file's folder there.
    if os.path.abspath(sys.path[0]) == os.path.dirname(os.path.abspath(__file__)):
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def traceback_of_program(error: BaseException) -> TracebackType | None:
    """Return the traceback from the program's first frame on; None if the program has not begun."""
    traceback = error.__traceback__
    while traceback is not None and is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def is_ours(traceback: TracebackType) -> bool:
    """Return whether the frame is of this file, or of runpy."""
    frame = traceback.tb_frame
    return frame.f_code.co_filename == __file__ or frame.f_globals.get("__name__") == "runpy"


def examine(terminal: str, traceback: TracebackType) -> None:
    """Run pdb on the terminal until the user leaves it; if another rank has it, wait for that."""
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # This process's exit would end the job, and with it the other rank's pdb.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return
    sys.stdout.flush()
    sys.stdin = open(descriptor, closefd=False)
    sys.stdout = open(descriptor, "w", closefd=False)
    # Otherwise Ctrl-C would only end pdb's current line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print(f"clusterrun: rank {os.environ['RANK']} has failed; q leaves pdb and ends the job")
    pdb.post_mortem(traceback)


main()
