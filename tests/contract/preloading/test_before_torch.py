"""Torch is imported once for all ranks, or by each rank, depending on what a script does before the import.

A rank finds the same either way. Most tests use a small torch that records what it reads; the long one
compares some eleven hundred facts with the real one.
"""

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.contract.launched import Ended, Launcher
from tests.contract.preloading.package_environment import (
    FOLDER,
    SECONDS_TO_RUN,
    run_alone,
    run_launched,
)
from tests.contract.preloading.test_packages import differences, read_facts

TORCH = """
import logging, os, sys, types

logger = logging.getLogger("torch")
logger.addHandler(logging.StreamHandler())
default_generator = types.SimpleNamespace(seed=int)
FOUND = {
    "TORCH_LOGS": os.environ.get("TORCH_LOGS"),
    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    "MODE": os.environ.get("MODE"),
    "class": type(logger).__name__,
    "stream": logger.handlers[0].stream is sys.stderr,
    "cpus": len(os.sched_getaffinity(0)),
    "companion": __import__("companion").__file__,
}
"""

ONCE = "imported once"
ITSELF = "by each rank itself"
STARTS_OVER = "each rank starts over"

PREFIXES = {
    "nothing": ("", ONCE),
    "arguments": ("import argparse; A = argparse.ArgumentParser().parse_known_args()", ONCE),
    "seeds": ("import random; random.seed(5)", ONCE),
    "basicConfig": ("import logging; logging.basicConfig(level='DEBUG')", ONCE),
    "another folder": ("import os; os.chdir('/')", ONCE),
    "a signal handler": ("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", ONCE),
    "a hook": ("import sys; sys.excepthook = print", ONCE),
    "ignored warnings": ("import warnings; warnings.filterwarnings('ignore')", ONCE),
    "a folder put last": ("import sys; sys.path.append('elsewhere')", ONCE),
    "an empty folder put first": ("import sys; sys.path.insert(0, '/proc/self')", ONCE),
    "garbage": ("import gc; gc.disable()", ONCE),
    "recursion": ("import sys; sys.setrecursionlimit(5000)", ONCE),
    "a locale": ("import locale; locale.setlocale(locale.LC_ALL, 'C')", ONCE),
    "a start method": (
        "import multiprocessing; multiprocessing.set_start_method('spawn', force=True)",
        ONCE,
    ),
    "time": ("import time; T = time.time()", ONCE),
    "a test of sys.modules": ("import sys; assert 'torch' not in sys.modules", ONCE),
    "a search for its spec": (
        "import importlib.util as u; assert u.find_spec('torch').origin",
        ONCE,
    ),
    "variables of others": (
        "import os; os.environ.update(CUDA_VISIBLE_DEVICES='0', NCCL_DEBUG='WARN', HF_HOME='/x')",
        ONCE,
    ),
    "any variable of others": ("import os; os.environ['A' + 'B'] = '1'", ONCE),
    "a constant": ("import os; os.environ['OMP_NUM_THREADS'] = '3'", ONCE),
    "a default": ("import os; os.environ.setdefault('TORCH_LOGS', 'dynamo')", ONCE),
    "a default of what is set": ("import os; os.environ.setdefault('OMP_NUM_THREADS', '9')", ONCE),
    "several constants": (
        "import os; os.environ.update({'OMP_NUM_THREADS': '3'}, TORCH_LOGS='dynamo')",
        ONCE,
    ),
    "in a function": ("def main():\n    import torch\nprint('first')\nmain()", ONCE),
    "in a function that another calls": (
        "import atexit\ndef main():\n    import torch\natexit.register(main)",
        ONCE,
    ),
    "in a branch": ("if len('a'):\n    import torch", ONCE),
    "a value": ("import os; os.environ['OMP_NUM_THREADS'] = str(3)", ITSELF),
    "a branch": ("import os\nif len('a'):\n    os.environ['TORCH_LOGS'] = 'dynamo'", ITSELF),
    "deleted": ("import os; os.environ.pop('OMP_NUM_THREADS')", ITSELF),
    "dictConfig": ("from logging import config; config.dictConfig({'version': 1})", ITSELF),
    "a logger class": (
        "import logging; logging.setLoggerClass(type('Mine', (logging.Logger,), {}))",
        ITSELF,
    ),
    "another stream": ("import sys; sys.stderr = open(2, 'w', closefd=False)", ITSELF),
    "other CPUs": ("import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", ITSELF),
    "a library": ("import ctypes; ctypes.CDLL(None)", ITSELF),
    "any variable": (
        "import os\nfor name in ['TORCH_LOGS']: os.environ[name] = 'dynamo'",
        STARTS_OVER,
    ),
    "a variable that only this torch reads": ("import os; os.environ['MODE'] = '1'", STARTS_OVER),
    "another stream by another name": (
        "import sys; setattr(sys, 'stderr', open(2, 'w', closefd=False))",
        STARTS_OVER,
    ),
    "a folder put first that has one": (
        "import sys; sys.path.insert(0, 'elsewhere')",
        STARTS_OVER,
    ),
    "a logger": ("import logging; logging.getLogger('torch').setLevel('ERROR')", STARTS_OVER),
    "a replaced module": (
        "import sys; sys.modules['companion'] = sys; sys.__file__ = 'x'",
        STARTS_OVER,
    ),
    "loading": ("import sys; getattr(sys, 'setdlopen' + 'flags')(9)", STARTS_OVER),
    "warnings that are errors": ("import warnings; warnings.simplefilter('error')", STARTS_OVER),
}
"""The text before ``import torch``, and which process then imports it."""

WITH_REAL_TORCH = (
    *("basicConfig", "seeds", "another folder", "several constants"),
    *("a value", "dictConfig", "other CPUs"),
    *("any variable", "a logger", "loading"),
)
"""Some of each kind: about what is changed, the small torch says as much."""

IN_CHECK = (*WITH_REAL_TORCH, "a variable that only this torch reads")
"""The others are long."""

SHOWS = "import torch\nprint(torch.__spec__.origin, torch.FOUND)"


class Light:
    """Jobs with a small torch."""

    def __init__(self, clusterrun: Launcher, environ: dict[str, str]) -> None:
        self.folder = clusterrun.folder
        self.command = clusterrun.command
        self.environ = environ


@pytest.fixture
def light(clusterrun: Launcher, tmp_path: Path) -> Light:
    """Return an object that starts such jobs, with an empty cache."""
    installed = clusterrun.folder / "site-packages"
    (installed / "torch").mkdir(parents=True)
    (installed / "torch/__init__.py").write_text(TORCH)
    (clusterrun.folder / "elsewhere").mkdir()
    for folder in (installed, clusterrun.folder / "elsewhere"):
        (folder / "companion.py").touch()
    return Light(
        clusterrun, {"PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    )


def run(light: Light, script: str, *options: str, workers: int = 2) -> Ended:
    """Return the result of a job with this script."""
    file = light.folder / "train.py"
    # Writing it again would invalidate the cache.
    if not file.exists() or file.read_text() != script:
        file.write_text(script)
    words = (*options, "train.py")
    return light.command(*words, workers=workers, environ=light.environ).ended()


def how(ended: Ended) -> str:
    """Return which process has imported torch, by the lines of ``-v``."""
    if "starts over" in ended.err:
        return STARTS_OVER
    return ITSELF if "imports torch itself" in ended.err else ONCE


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in IN_CHECK else pytest.mark.long) for name in PREFIXES],
)
def test_torch_import_equals_spawn(light: Light, name: str) -> None:
    """Torch reads the same as with ``--start-method spawn``."""
    prefix, expected = PREFIXES[name]
    script = f"{prefix}\n{SHOWS}\n"

    spawned = run(light, script, "--start-method=spawn")
    ended = run(light, script, "-v")

    assert (ended.code, sorted(ended.out.splitlines())) == (0, sorted(spawned.out.splitlines()))
    assert how(ended) == expected, ended.err


CHANGES = """
import os, sys
print("its first line", flush=True)
for name in ["TORCH_LOGS"]:
    os.environ[name] = "x"
import torch
print(torch.FOUND["TORCH_LOGS"], sys.argv[1:], os.getcwd(), os.getppid())
"""


def test_reexecuted_rank_prints_why(light: Light) -> None:
    """Once in a job; in later jobs each rank imports torch."""
    first = run(light, CHANGES, "-v")
    second = run(light, CHANGES)

    begun = first.err.count("starts over")
    assert begun == 1
    assert re.search(
        r"train\.py: TORCH_LOGS was set before torch is imported: rank \d starts over, and later"
        r" runs import torch in each worker",
        first.err,
    )
    # A rank that starts after the other was re-executed is spawned.
    assert first.out.count("its first line") in (3, 4)
    assert second.out.count("its first line") == 2
    assert (first.out.count("x []"), second.out.count("x []")) == (2, 2)
    assert second.err == (
        "clusterrun: train.py: TORCH_LOGS was set before torch is imported, so each of 2 workers"
        " imports torch itself; to import it once: --preload torch\n"
    )


def test_edited_script_invalidates_cache(light: Light) -> None:
    run(light, CHANGES)

    ended = run(light, CHANGES.replace("TORCH_LOGS", "MINE"), "-v")

    assert how(ended) == ONCE


FAILS = CHANGES + "raise ValueError('late')\n"


def test_failure_after_reexecution(light: Light) -> None:
    """It is reported with its traceback, and restarts; the second attempt spawns its workers."""
    ended = run(light, FAILS, "--max-restarts=1", "-v")

    assert (ended.code, ended.err.count("starts over")) == (1, 1)
    # In each attempt a rank may be stopped, because the other one fails, before it has printed it.
    assert ended.out.count("its first line") in range(3, 7)
    assert "ValueError: late" in ended.err
    assert "in <module>" in ended.err


STARTS_ANOTHER = (
    """
import subprocess
child = subprocess.Popen(["sleep", "100"])
"""
    + CHANGES
    + """
with open(f"/proc/self/task/{os.getpid()}/children") as file:
    print("children", len(file.read().split()))
child.kill()
"""
)


def test_reexecution_kills_children(light: Light) -> None:
    """Those that the script has started before it imports torch."""
    ended = run(light, STARTS_ANOTHER)

    assert (ended.code, ended.out.count("children 1")) == (0, 2)


WAITS = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + CHANGES
    + """
assert signal.signal(signal.SIGTERM, lambda *_: os._exit(7)) == signal.SIG_IGN
print("waits", flush=True)
while True: time.sleep(0.1)
"""
)


def test_signal_after_reexecution(light: Light) -> None:
    """SIGTERM reaches the rank as it reaches any other."""
    (light.folder / "train.py").write_text(WAITS)
    job = light.command("train.py", workers=2, environ=light.environ)
    job.wait_for("waits", times=2)

    job.signal(signal.SIGTERM)

    ended = job.ended()
    assert (ended.code, "exit code 7" in ended.err) == (128 + signal.SIGTERM, True)


IN_A_CHILD = """
import os
for name in ["TORCH_LOGS"]:
    os.environ[name] = "x"
pid = os.fork()
if pid == 0:
    import torch
    os._exit(0)
_, status = os.waitpid(pid, 0)
print("child", os.waitstatus_to_exitcode(status))
"""


def test_forked_child_of_rank_is_not_reexecuted(light: Light) -> None:
    """It would run the whole script, so the import fails; the next job works."""
    first, second = (run(light, IN_A_CHILD) for _ in range(2))

    assert "ImportError: train.py: TORCH_LOGS was set before torch is imported" in first.err
    assert "run it again, and each rank imports torch itself" in first.err
    assert second.out.count("child 0") == 2


NUMPY_ALONE = """
import os
for name in ["TORCH_LOGS"]:
    os.environ[name] = "x"
import companion
print(companion.FOUND)
"""


def test_change_before_package_imported_with_torch(light: Light) -> None:
    """The rank is re-executed, even if it does not import torch."""
    text = "import os\nFOUND = os.environ.get('TORCH_LOGS', 'nothing')\n"
    (light.folder / "site-packages/companion.py").write_text(text)

    ended = run(light, NUMPY_ALONE + "if len(os.sys.argv) > 5:\n    import torch\n", "-v")

    assert (ended.code, ended.out.count("x\n"), how(ended)) == (0, 2, STARTS_OVER)


NOT_IMPORTED = """
import atexit, sys
atexit.register(print, "at exit")
if len(sys.argv) > 5:
    import torch
print("torch" in sys.modules)
"""


def test_torch_is_never_imported(light: Light) -> None:
    """The script does not find it in sys.modules."""
    ended = run(light, NOT_IMPORTED, "-v")

    assert (ended.code, how(ended)) == (0, ONCE)
    assert (ended.out.count("False\n"), ended.out.count("at exit")) == (2, 2)


PRINTS = """
print("of torch")
import warnings
warnings.warn("old", stacklevel=1)
"""


@pytest.mark.parametrize("filters", ["", "import warnings; warnings.simplefilter('ignore')"])
def test_output_of_torch_import(light: Light, filters: str) -> None:
    """Each rank prints it when its script imports torch, and a warning only if no filter ignores it."""
    torch = light.folder / "site-packages/torch/__init__.py"
    torch.write_text(TORCH + PRINTS)
    script = f"{filters}\nprint('before', flush=True)\nimport torch\nprint('after')"

    spawned = run(light, script, "--start-method=spawn", workers=2)
    ended = run(light, script, workers=2)

    for rank in range(2):
        lines, expected = (
            [line for line in each.out.splitlines() if f"[rank {rank}]" in line]
            for each in (ended, spawned)
        )
        assert (
            lines[-3:]
            == expected[-3:]
            == [f"[rank {rank}] {x}" for x in ("before", "of torch", "after")]
        )
    assert ended.err.count("UserWarning: old") == spawned.err.count("UserWarning: old")


def test_cache_cannot_be_written(light: Light) -> None:
    """Each job is re-executed, and works; the notice and the error of a child name the way out."""
    light.environ["XDG_CACHE_HOME"] = "/proc/nowhere"

    for _ in range(2):
        ended = run(light, CHANGES)

        assert (ended.code, ended.out.count("x []")) == (0, 2)
        assert "starts over, and later runs do the same, because nothing can be cached" in ended.err

    forked = run(light, IN_A_CHILD)
    avoided = run(light, IN_A_CHILD, "--preload=none")

    assert "before torch is imported: run it with --preload none" in forked.err
    assert avoided.out.count("child 0") == 2


@pytest.mark.long
@pytest.mark.timeout(4 * SECONDS_TO_RUN)
@pytest.mark.parametrize("name", WITH_REAL_TORCH)
def test_facts_equal_plain_python(tmp_path: Path, name: str) -> None:
    """All facts of the probe, with the real torch, as with Python alone."""
    prefix, _ = PREFIXES[name]
    (tmp_path / "elsewhere").mkdir()
    probe = (FOLDER / "probe.py").read_text().replace("PACKAGE", "torch")
    (tmp_path / "probe.py").write_text(f"{prefix}\n{probe}")
    run_alone(sys.executable, ["probe.py"], tmp_path, {"PROBE_FILE": str(tmp_path / "alone")})
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    files = {"PROBE_FILE": str(tmp_path / "auto")}

    ended = run_launched(sys.executable, ["probe.py"], tmp_path, {**files, **cache})

    alone, auto = (read_facts(tmp_path / way) for way in ("alone", "auto"))
    found = differences(alone, auto)
    if "constant" in name:
        # numpy then has threads, which start again when it computes: docs/workers.md.
        found = [each for each in found if not each.startswith("threads: ")]
    assert found == [], ended.err
