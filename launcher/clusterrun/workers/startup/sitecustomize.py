"""Runs first in a spawned Python worker: SIGQUIT prints its stacks, a failure is reported. Leaves no trace.

The agent puts this folder in front of PYTHONPATH. Python's ``site`` imports ``sitecustomize`` from
there; this one takes its traces out of ``sys`` and ``os.environ`` and lets the user's own
``sitecustomize``, if there is one, be found in its place. Python 3.8 or newer; quick, as every
worker waits for it.
"""

import _thread
import os
import sys

# Python itself imports it where it is asked to, by PYTHONFAULTHANDLER.
IMPORTED_BEFORE = "faulthandler" in sys.modules
import faulthandler  # noqa: E402 - see above

SIGQUIT, SIGCHLD = (
    3,
    17,
)  # without the signal module, which a plain interpreter has not imported here


def leave_no_trace() -> None:
    """Make sys.path, sys.modules and PYTHONPATH what they would have been without us."""
    here = os.path.dirname(__file__)
    sys.path.remove(here)
    sys.path_importer_cache.pop(here, None)
    if not IMPORTED_BEFORE:
        del sys.modules["faulthandler"]
    first, separator, users_own = os.environ["PYTHONPATH"].partition(os.pathsep)
    if first == here and separator:
        os.environ["PYTHONPATH"] = users_own
    elif first == here:
        del os.environ["PYTHONPATH"]


def report_failure(to: str) -> None:
    """Have the fork server learn when an exception leaves the script (its ``failure_notes``).

    Python tells audit hooks when it is about to print such an exception (``sys.excepthook`` in its
    table of audit events); threads and exit handlers may still keep the process from its end.
    """
    server, number = map(int, to.split(":"))
    process, thread = os.getpid(), _thread.get_ident()

    def audit(event: str, arguments: "tuple[object, ...]") -> None:
        if event != "sys.excepthook" or os.getpid() != process or _thread.get_ident() != thread:
            return
        # With Python code beneath, C code prints an exception that ends nothing.
        beneath = sys._getframe().f_back  # noqa: SLF001 - documented, for special purposes
        # With a program between, or in a PID namespace of its own, the exit dates the failure.
        if beneath is not None or arguments[1] is KeyboardInterrupt or os.getppid() != server:
            return
        try:
            os.kill(server, number)
            # It wakes the server.
            os.kill(server, SIGCHLD)
        except OSError:  # the script has changed its user
            return

    sys.addaudithook(audit)


faulthandler.register(SIGQUIT, file=2, all_threads=True, chain=False)
if failure_notes := os.environ.pop("CLUSTERRUN_FAILURE_NOTES", ""):
    report_failure(failure_notes)
leave_no_trace()
del sys.modules["sitecustomize"]
# Raises ImportError for this very name where the user has none: what ``site`` expects then.
import sitecustomize  # noqa: E402, F401
