"""What runs first in a Python worker, as the worker sees it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.door import (
    STARTUP_FOLDER,
)

SHOW = "import json, os, sys; print(json.dumps([sys.path, os.environ.get('PYTHONPATH')]))"


def shown(code: str, *pythonpath: str, options: tuple[str, ...] = ()) -> list[object]:
    """Return what ``code`` prints as JSON, run as a worker that has these folders in PYTHONPATH."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(STARTUP_FOLDER), *pythonpath])}
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environ,
        capture_output=True,
        timeout=30,
        check=True,
    )
    answer: list[object] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("pythonpath", "variable"),
    [
        ((), None),
        (("/own",), "/own"),
        (("/own", "", "/more"), "/own::/more"),
    ],
)
def test_paths_are_the_users_own(pythonpath: tuple[str, ...], variable: str | None) -> None:
    """Our folder is no longer first; the others are unchanged."""
    path, left = shown(SHOW, *pythonpath)

    assert left == variable
    assert isinstance(path, list)
    assert path[1 : 1 + len(pythonpath)] == [name or str(Path.cwd()) for name in pythonpath]
    assert str(STARTUP_FOLDER) not in path


def test_children_of_a_worker_find_nothing_of_ours() -> None:
    """This holds for what it starts with a shell, and for what multiprocessing spawns."""
    code = f"""if True:
        import subprocess, sys
        print(subprocess.run(
            [sys.executable, "-c", {SHOW!r}], check=True, capture_output=True, text=True
        ).stdout)
    """

    path, left = shown(code)

    assert left is None
    assert isinstance(path, list)
    assert str(STARTUP_FOLDER) not in path


@pytest.mark.needs("own sitecustomize")
def test_a_module_that_looks_like_ours() -> None:
    """The name is free for the user's own module."""
    code = """if True:
        import json, sys
        try:
            import sitecustomize
        except ImportError as error:
            print(json.dumps([error.name, "sitecustomize" in sys.modules]))
    """

    assert shown(code) == ["sitecustomize", False]


def test_stacks_are_ready_to_be_shown() -> None:
    """SIGQUIT is caught from the first line on, and no imported module shows it."""
    code = """if True:
        import json, signal, sys
        with open("/proc/self/status") as status:
            caught = next(int(line[8:], 16) for line in status if line.startswith("SigCgt:"))
        print(json.dumps([caught >> (signal.SIGQUIT - 1) & 1, "faulthandler" in sys.modules]))
    """

    assert shown(code) == [1, False]


def test_a_user_who_wants_no_environment() -> None:
    """``-E`` in front of the script ignores PYTHONPATH, and so our folder."""
    path, _ = shown(SHOW, options=("-E",))

    assert isinstance(path, list)
    assert str(STARTUP_FOLDER) not in path
