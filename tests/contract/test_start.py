"""The start of a job: modules that the launcher does not import, and a comparison with torchrun."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

BENCHMARK = Path(__file__).parents[2] / "scripts/bench_start.py"

SLOW = {"asyncio", "logging", "numpy", "pynvml", "rich", "subprocess", "tempfile", "torch", "yaml"}
"""Modules that take long to import and are not needed unless something fails."""

IMPORTED = re.compile(r"^import time: .*\| +([\w.]+)$", re.MULTILINE)
"""Python's line for each module under ``-X importtime``."""


def test_launcher_imports_no_slow_module(clusterrun: Launcher) -> None:
    """Python lists the imports of the agent and the relay."""
    ended = clusterrun.script(
        "import logging", workers=2, around=(sys.executable, "-X", "importtime")
    ).ended()

    imported = set(IMPORTED.findall(ended.err))
    assert ended.code == 0
    assert {"clusterrun.run.launch", "clusterrun.workers.relay.loop"} <= imported
    assert SLOW & {name.partition(".")[0] for name in imported} == set()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_launch_is_much_faster_than_torchrun() -> None:
    """Ten times is promised for eight ranks of an empty script; the machine may be busy."""
    assert times_faster_than_torchrun(runs=9) > 5


def times_faster_than_torchrun(runs: int) -> float:
    """Return the ratio of medians that the benchmark finds."""
    command = [sys.executable, str(BENCHMARK), f"--runs={runs}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    [ratio] = re.findall(r"([\d.]+) times", done.stdout)
    return float(ratio)
