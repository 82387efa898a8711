"""A worker finds the same environment as without a launcher."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy import events, outcome
from clusterrun.workers import node_workers

from tests.workers.fork_server_bench import Bench, fork_server
from tests.workers.interpreters import OLDEST, oldest_python

SHOW = """
import json, os, sys
shown = {
    "path": sys.path,
    "modules": sorted(sys.modules),
    "importers": sorted(sys.path_importer_cache),
    "flags": str(sys.flags),
    "argv": sys.argv,
    "executable": sys.executable,
    "environ": dict(os.environ),
    "folder": os.getcwd(),
    "umask": os.umask(0),
    "unbuffered": sys.stdout.write_through,
}
print(json.dumps(shown))
"""

Shown = dict[str, Any]

OF_THE_BENCH = {"OF_THE_JOB": "job", "OF_BOTH": "worker", "OF_THE_WORKER": "worker"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script that prints what it finds."""
    script = tmp_path / "train.py"
    script.write_text(SHOW)
    return script


def shown_to_a_worker(python: str, script: Path, environ: Mapping[str, str]) -> Shown:
    """Return what the script finds as a worker."""
    with fork_server(python, environ) as bench:
        printed = bench.spawn(
            0,
            *(python, "-u", str(script), "--lr", "1"),
            env={"OF_BOTH": "worker", "OF_THE_WORKER": "worker"},
            startup=str(node_workers.STARTUP_FOLDER),
        )
        bench.expect(events.WorkerStarted)
        shown: Shown = json.loads(printed.rest())
        return shown


def shown_to_plain_python(python: str, script: Path, environ: Mapping[str, str]) -> Shown:
    """Return what the script finds under plain ``python -u``."""
    done = subprocess.run(
        [python, "-u", script, "--lr", "1"],
        env={**os.environ, **environ, **OF_THE_BENCH},
        capture_output=True,
        timeout=30,
        check=True,
    )
    shown: Shown = json.loads(done.stdout)
    return shown


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PYTHONPATH": "/of/the/user"},
        {"PYTHONPATH": "/of/the/user:/and/more"},
        {"PYTHONPATH": "/of/the/user:"},
        {"PYTHONPATH": ""},
        {"PYTHONFAULTHANDLER": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    ],
    ids=str,
)
def test_worker_equals_plain_python(script: Path, environ: Mapping[str, str]) -> None:
    """Paths, modules, flags, arguments and variables are equal; an empty PYTHONPATH is missing."""
    expected = shown_to_plain_python(sys.executable, script, environ)
    if environ.get("PYTHONPATH") == "":
        assert expected["environ"].pop("PYTHONPATH") == ""

    assert shown_to_a_worker(sys.executable, script, environ) == expected


def test_oldest_python(script: Path) -> None:
    """Fork server and worker run on it, though the launcher doesn't."""
    python = oldest_python()
    if python is None:
        pytest.skip(f"no Python {OLDEST} here")

    shown = shown_to_a_worker(python, script, {})

    assert shown == shown_to_plain_python(python, script, {})


def test_own_sitecustomize(tmp_path: Path, script: Path) -> None:
    """It is imported under its own name."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['CUSTOMIZED'] = __file__\n")
    environ = {"PYTHONPATH": str(own)}
    expected = shown_to_plain_python(sys.executable, script, environ)

    shown = shown_to_a_worker(sys.executable, script, environ)

    assert shown == expected
    assert shown["environ"]["CUSTOMIZED"] == str(own / "sitecustomize.py")


def test_failing_sitecustomize(tmp_path: Path) -> None:
    """Python reports it, also at the fork server's start, and the worker continues."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('of the user')\n")
    with fork_server(environ={"PYTHONPATH": str(tmp_path)}) as bench:
        printed = bench.spawn(
            0, sys.executable, "-c", "print('continues')", startup=str(node_workers.STARTUP_FOLDER)
        )

        words = r"Error in sitecustomize; .*:\nValueError: of the user"
        assert re.fullmatch(words, bench.expect(events.ForkServerReady).printed)
        assert bench.events(2)[1] == events.WorkerEnded(LocalRank(0), outcome.Exited(0), 7.0)
        assert re.fullmatch(rf"{words}\ncontinues\n", printed.rest())


def test_undecodable_variables_and_arguments(bench: Bench) -> None:
    """Their bytes arrive unchanged."""
    raw = os.fsdecode(b"\xff\xfe")

    printed = bench.spawn(0, "sh", "-c", 'echo "$1$RAW" | od -An -tx1', "sh", raw, env={"RAW": raw})

    assert printed.rest().split() == ["ff", "fe", "ff", "fe", "0a"]


def test_other_programs_get_no_startup_folder(bench: Bench) -> None:
    """Their PYTHONPATH is unchanged."""
    printed = bench.spawn(0, "sh", "-c", "echo ${PYTHONPATH-none}", env={"PYTHONPATH": "own"})

    assert printed.rest() == "own\n"
