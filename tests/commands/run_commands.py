"""Helpers that run clusterrun commands about a test's jobs."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterrun.network.control_client import find_jobs

from tests.contract.launched import COMMAND, Job, Launcher
from tests.waiting import SECONDS_TO_ACT, wait_until


def run_command(
    variables: Mapping[str, str], *words: str, around: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a clusterrun command; ``around`` is a program that executes the rest of its arguments."""
    # readline, which pytest imports, sets COLUMNS for the processes of xdist.
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [*around, COMMAND, *words],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_ACT,
        check=False,
    )


def start_job(clusterrun: Launcher, runtime: Mapping[str, str], script: str, *options: str) -> Job:
    """Start a run "mine" with two workers; wait until both run and the agent answers."""
    job = clusterrun.script(script, "--run-id=mine", *options, workers=2, environ=runtime)
    job.wait_for("begun", times=2)
    wait_until(lambda: find_jobs([Path(runtime["XDG_RUNTIME_DIR"]) / "clusterrun"]).jobs)
    return job


def assert_runs_until_stopped(job: Job, runtime: Mapping[str, str]) -> None:
    """Stop the run "mine"; assert that it had not ended before."""
    run_command(runtime, "stop", "--now", "mine")
    assert job.ended().code == 143


FAKE_PY_SPY = """#!/bin/sh
echo "arguments: $@"
"""

REFUSED_PY_SPY = """#!/bin/sh
echo "Error: Permission denied" >&2
exit 1
"""


def with_py_spy(runtime: dict[str, str], folder: Path, script: str) -> dict[str, str]:
    """Return the variables of a job whose agent finds this py-spy."""
    folder.mkdir()
    (folder / "py-spy").write_text(script)
    (folder / "py-spy").chmod(0o755)
    return {**runtime, "PATH": f"{folder}:{os.environ['PATH']}"}
