"""The program that the agent executes. In a forked worker, its last statement runs the script."""

# What Python puts into the namespace of any script, before anything is added here.
SCRIPT_NAMESPACE = dict(globals())

import sys

INITIAL_MODULES = frozenset(sys.modules)

if sys.version_info < (3, 8):  # noqa: UP036 - the user chooses the interpreter
    # The agent prints this, as it gets no "ready".
    sys.exit("Python %d.%d is too old" % sys.version_info[:2])  # noqa: UP031 - it is too old

import atexit
import gc

FOLDER = __file__.rpartition("/")[0]
# What runs a call from Python; a user's script finds no exit handler of ours.
RANK_PROGRAM = FOLDER.rpartition("/workers/")[0] + "/clients/python/rank.py"

run = None
if RANK_PROGRAM in sys.argv:
    # Registered first, so that it is called last.
    atexit.register(lambda: run is None or run.end_at_once())

# Imports leave no garbage, and a search for it takes a tenth of their time.
gc.disable()

if not getattr(sys.flags, "safe_path", False):
    # This folder, which scripts must not search for modules.
    del sys.path[0]

# Imported as ``clusterrun.workers.fork_server``, it would import the launcher, too.
package = type(sys)("fork_server")
package.__path__ = [FOLDER]
sys.modules["fork_server"] = package

# Returns in a forked worker only, with the script that it runs.
run = __import__("fork_server.server", fromlist=["main"]).main(SCRIPT_NAMESPACE, INITIAL_MODULES)

# The only frame of ours beneath the script. Python prints the exception that leaves it, waits for
# threads, and ends the process as it ends any other.
try:
    run.begin()
    exec(run.code, run.namespace)  # noqa: S102 - the script itself
except BaseException as error:
    run.note_failure(error)
    raise
finally:
    run.let_python_end()
