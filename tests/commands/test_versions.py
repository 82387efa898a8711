"""A command about a job with another version of the protocol."""

import signal
import sys
from pathlib import Path

import pytest
from clusterrun.network.control_client import find_jobs
from clusterrun.network.handshake import VERSION

from tests.commands.run_commands import run_command
from tests.contract.launched import Launcher
from tests.waiting import wait_until

NEWER = f"""
import importlib, runpy, sys
importlib.import_module("clusterrun.network.handshake").VERSION = {VERSION + 1}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("words", [("status",), ("stacks", "mine"), ("slow",), ("stop", "mine")])
def test_other_protocol_version_is_named(
    clusterrun: Launcher, runtime: dict[str, str], words: tuple[str, ...]
) -> None:
    """The error names the clusterrun that can answer."""
    job = clusterrun.script(
        "import time; print('begun', flush=True); time.sleep(600)",
        "--run-id=mine",
        around=(sys.executable, "-c", NEWER),
        environ=runtime,
    )
    job.wait_for("begun")
    wait_until(lambda: find_jobs([Path(runtime["XDG_RUNTIME_DIR"]) / "clusterrun"]).silent)

    answer = run_command(runtime, *words)
    listed = run_command(runtime, "ps")
    job.signal(signal.SIGTERM)

    line = (
        f"it speaks version {VERSION + 1} of clusterrun's protocol, but this clusterrun speaks"
        f" {VERSION}; use the"
    )
    assert answer.returncode == 1, answer
    assert line in answer.stderr
    assert line in listed.stdout
    assert job.ended().code == 143
