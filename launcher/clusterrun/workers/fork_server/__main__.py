"""The program that the agent executes. In a forked worker, its last statement runs the script."""

# The names that Python puts into every script's namespace, before this file adds others.
SCRIPT_NAMESPACE = dict(globals())

import sys

INITIAL_MODULES = frozenset(sys.modules)

if sys.version_info < (3, 8):  # noqa: UP036 - the user chooses the interpreter
    # The agent prints this because it receives no ``Ready``.
    sys.exit("Python %d.%d is too old" % sys.version_info[:2])  # noqa: UP031 - it is too old

import atexit
import gc

FOLDER = __file__.rpartition("/")[0]
# It runs a call from Python. Only then is an exit handler added: a user's script must not find one.
RANK_PROGRAM = FOLDER.rpartition("/workers/")[0] + "/clients/python/rank.py"

run = None
if RANK_PROGRAM in sys.argv:
    # Registered first, so it is called last.
    atexit.register(lambda: run is None or run.end_at_once())

# Garbage collection takes a tenth of the import time and finds nothing.
gc.disable()

if not getattr(sys.flags, "safe_path", False):
    # This folder: scripts must not find modules there.
    del sys.path[0]

# Importing it as ``clusterrun.workers.fork_server`` would import the launcher too.
package = type(sys)("fork_server")
package.__path__ = [FOLDER]
sys.modules["fork_server"] = package

# First, because PYTHONPATH may have a ``resource.py``.
__import__("fork_server.hidden_modules", fromlist=["main"]).search_the_users_folders_last()

# Returns in a forked worker only.
run = __import__("fork_server.server", fromlist=["main"]).main(SCRIPT_NAMESPACE, INITIAL_MODULES)

# The only frame of this package beneath the script. Python itself prints an uncaught exception, waits for
# threads, and ends the process.
try:
    run.begin()
    exec(run.code, run.namespace)  # noqa: S102 - the script itself
except BaseException as error:
    run.note_failure(error)
    raise
finally:
    run.let_python_end()
