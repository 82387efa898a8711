"""A forked rank has no Python object of the fork server that could close a descriptor of the script."""

import pytest

from tests.contract.launched import Launcher

SAYS_HOW = """
import os, sys
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
how = "forked" if "fork_server" in open("/proc/self/cmdline").read() else "spawned"
"""

SHOWS_STALE = (
    SAYS_HOW
    + """
import gc

def stale():
    # What was made before the fork is frozen, and the collector does not track sockets.
    gc.unfreeze()
    tracked = gc.get_objects()
    found = {id(each): each for each in (*tracked, *gc.get_referents(*tracked))}
    for each in found.values():
        if callable(getattr(type(each), "fileno", None)) and not isinstance(each, type):
            try:
                number = each.fileno()
            except Exception:  # it is closed
                continue
            if isinstance(number, int) and number > 2:
                yield type(each).__name__, number

print(attempt, how, list(stale()))
"""
)

FAILS_ONCE = "sys.exit(attempt == 0)\n"


@pytest.mark.parametrize("preload", ["auto", "none", "json,socket"])
def test_forked_attempts_have_no_stale_object(clusterrun: Launcher, preload: str) -> None:
    options = ("--start-method=fork", f"--preload={preload}", "--max-restarts=1")

    ended = clusterrun.script(
        f"import numpy\n{SHOWS_STALE}{FAILS_ONCE}", *options, workers=1
    ).ended()

    assert ended.code == 0, ended.err
    assert ended.out == "0 forked []\n1 forked []\n"


IS_A_FILE_AGAIN = (
    SAYS_HOW
    + """
print(attempt, how, flush=True)
folder = os.path.dirname(__file__)
os.rename(folder, folder + ".folder")
os.rename(folder + ".file", folder)
sys.exit(1)
"""
)

BECOMES_A_FOLDER = f"""
if attempt == 0:
    os.rename(__file__, __file__ + ".file")
    os.mkdir(__file__)
    with open(os.path.join(__file__, "__main__.py"), "w") as file:
        file.write({IS_A_FILE_AGAIN!r})
    sys.exit(1)
"""


def test_forked_attempt_after_spawned_one_has_no_stale_object(clusterrun: Launcher) -> None:
    """A folder can't run in place; in the next attempt the script is a file again."""
    options = ("--start-method=fork", "--preload=none", "--max-restarts=2")

    ended = clusterrun.script(SHOWS_STALE + BECOMES_A_FOLDER, *options, workers=1).ended()

    assert ended.code == 0, ended.err
    assert ended.out == "0 forked []\n1 spawned\n2 forked []\n"
