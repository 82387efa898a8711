"""What the agent executes; see the package. In a forked worker, its last statement runs the script."""

# What Python gives to any script, before we add to it.
FRESH_NAMESPACE = dict(globals())

import sys

FOUND_MODULES = frozenset(sys.modules)

if sys.version_info < (3, 8):  # noqa: UP036 - the job names it, not the launcher
    # The agent gets no "hello", and prints this.
    sys.exit("Python %d.%d is too old" % sys.version_info[:2])  # noqa: UP031 - it is too old

import gc

# Imports leave no garbage, and looking for it all the while takes a tenth of their time.
gc.disable()

FOLDER = __file__.rpartition("/")[0]
if not getattr(sys.flags, "safe_path", False):
    # This folder, in front of what scripts import.
    del sys.path[0]

# A package by hand: as ``clusterrun.workers.fork_server`` it would bring the launcher along.
package = type(sys)("fork_server")
package.__path__ = [FOLDER]
sys.modules["fork_server"] = package

# The server never returns from this; a forked worker does, with the script that it runs.
run = __import__("fork_server.server", fromlist=["main"]).main(FRESH_NAMESPACE, FOUND_MODULES)

# The only frame of ours beneath the script. Python itself prints what leaves it, waits for threads,
# and ends the process as it ends any other.
try:
    run.begin()
    exec(run.code, run.namespace)  # noqa: S102 - the script itself
except BaseException as error:
    run.note_failure(error)
    raise
finally:
    run.let_python_end()
