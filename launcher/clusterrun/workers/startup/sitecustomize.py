"""Runs first in a spawned Python worker: makes SIGQUIT print stacks, and reports a failing script.

The agent puts this folder first on PYTHONPATH, so Python's ``site`` imports this ``sitecustomize``. It
removes its traces from ``sys`` and ``os.environ``, then imports the user's own ``sitecustomize``, if there
is one. It needs Python 3.8 or newer, and must be quick, because every worker runs it.
"""

import _thread
import os
import sys

# With PYTHONFAULTHANDLER, Python itself has imported it.
IMPORTED_BEFORE = "faulthandler" in sys.modules
import faulthandler  # noqa: E402 - see above

# The signal module would be a trace: a plain interpreter has not imported it yet.
SIGQUIT, SIGCHLD = 3, 17


def remove_traces() -> None:
    """Make sys.path, sys.modules and PYTHONPATH what they would be without this file."""
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
    """Signal the fork server when the script fails (``fork_server/failure_notes.py``).

    Python raises the audit event ``sys.excepthook`` when it is about to print an uncaught exception.
    Threads and exit handlers may keep the process alive after that.
    """
    server, number = map(int, to.split(":"))
    process, thread = os.getpid(), _thread.get_ident()

    def audit(event: str, arguments: "tuple[object, ...]") -> None:
        if event != "sys.excepthook" or os.getpid() != process or _thread.get_ident() != thread:
            return
        # C code that is called from Python may print an exception that does not end the script.
        caller = sys._getframe().f_back  # noqa: SLF001 - documented, for special purposes
        # If the server is not the parent, or not in this PID namespace, the exit reports the failure.
        if caller is not None or arguments[1] is KeyboardInterrupt or os.getppid() != server:
            return
        try:
            os.kill(server, number)
            # This one wakes the server.
            os.kill(server, SIGCHLD)
        except OSError:  # the script has changed its user
            return

    sys.addaudithook(audit)


faulthandler.register(SIGQUIT, file=2, all_threads=True, chain=False)
if failure_notes := os.environ.pop("CLUSTERRUN_FAILURE_NOTES", ""):
    report_failure(failure_notes)
remove_traces()
del sys.modules["sitecustomize"]
# Without a user's own one, this raises ImportError for this name, as ``site`` expects.
import sitecustomize  # noqa: E402, F401
