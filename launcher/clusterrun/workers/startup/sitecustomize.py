"""Runs first in a spawned Python worker: SIGQUIT prints its stacks. Leaves no trace.

The agent puts this folder in front of PYTHONPATH. Python's ``site`` imports ``sitecustomize`` from
there; this one takes its traces out of ``sys`` and ``os.environ`` and lets the user's own
``sitecustomize``, if there is one, be found in its place. Python 3.8 or newer; quick, as every
worker waits for it.
"""

import os
import sys

# Python itself imports it where it is asked to, by PYTHONFAULTHANDLER.
IMPORTED_BEFORE = "faulthandler" in sys.modules
import faulthandler  # noqa: E402 - see above

SIGQUIT = 3  # without the signal module, which a plain interpreter has not imported here


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


faulthandler.register(SIGQUIT, file=2, all_threads=True, chain=False)
leave_no_trace()
del sys.modules["sitecustomize"]
# Raises ImportError for this very name where the user has none: what ``site`` expects then.
import sitecustomize  # noqa: E402, F401
