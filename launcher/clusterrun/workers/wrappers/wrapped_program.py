"""The program that a wrapper runs in its own process, as ``python -u PROGRAM`` would.

A wrapper is started as ``PYTHON -u WRAPPER WORDS SCRIPT ARGS`` or ``... -m MODULE ARGS``, in the
job's interpreter: Python 3.8 or newer, and nothing but the standard library.
"""

from __future__ import annotations

import os
import runpy
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

OUR_FOLDER = os.path.dirname(os.path.abspath(__file__))


def run(words: list[str], failed: Callable[[TracebackType], None] | None = None) -> None:
    """Run the script or module that ``words`` name, with their arguments.

    An exception that leaves it is printed as Python does, without our frames; then ``failed`` is
    called with its traceback, and the process exits with 1.
    """
    try:
        _run(words)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        traceback = _traceback_of_program(error)
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        if failed is not None and traceback is not None:
            failed(traceback)
        sys.exit(1)


def _run(words: list[str]) -> None:
    is_module = words[0] == "-m"
    sys.argv[:] = words[1:] if is_module else words
    # Python puts the folder of the script that it is started with there.
    if os.path.abspath(sys.path[0]) == OUR_FOLDER:
        own_folder = os.path.dirname(os.path.realpath(words[0]))
        sys.path[0] = os.getcwd() if is_module else own_folder
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _traceback_of_program(error: BaseException) -> TracebackType | None:
    """Return the traceback from the program's first frame on; None if it has not begun."""
    traceback = error.__traceback__
    while traceback is not None and _is_ours(traceback):
        traceback = traceback.tb_next
    return traceback


def _is_ours(traceback: TracebackType) -> bool:
    frame = traceback.tb_frame
    folder = os.path.dirname(os.path.abspath(frame.f_code.co_filename))
    return folder == OUR_FOLDER or frame.f_globals.get("__name__") == "runpy"
