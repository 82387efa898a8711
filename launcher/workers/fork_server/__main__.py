"""What the agent executes; see the package. Nothing is left of it in a worker that runs in place."""

# What Python gives to any script, before we add to it.
FRESH_NAMESPACE = dict(globals())

import sys

FOUND_MODULES = frozenset(sys.modules)

if sys.version_info < (3, 8):  # noqa: UP036 - the job names it, not the launcher
    # The agent hears no "hello", and says what is needed.
    sys.exit(1)

import gc

# Imports leave no garbage, and looking for it all the while takes a tenth of their time.
gc.disable()

FOLDER = __file__.rpartition("/")[0]
if not getattr(sys.flags, "safe_path", False):
    # This folder, in front of what scripts import.
    del sys.path[0]

# A package by hand: as ``launcher.workers.fork_server`` it would bring the launcher along.
package = type(sys)("fork_server")
package.__path__ = [FOLDER]
sys.modules["fork_server"] = package

start = __import__("fork_server.server", fromlist=["main"]).main(FRESH_NAMESPACE, FOUND_MODULES)
# In a worker: an exception that Python takes for SystemExit, which runs the script (see ``leap``).
# All frames of ours are gone by then.
raise start
