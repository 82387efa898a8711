"""Debuggers of one rank: ``--debug``."""

import sys

from tests.contract.debugger import Debugger
from tests.contract.launched import Launcher

COUNTS = """
import os, sys
total = 0
for step in range(2):
    total += step
print("rank", os.environ["RANK"], "total", total, sys.argv[1:], __name__)
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""

PLACE = 5
"""The line in which ``total`` changes."""


def test_one_rank_waits_for_a_debugger(clusterrun: Launcher) -> None:
    """It stops at a breakpoint, the others run; no time-out of ours counts, its exit code does."""
    job = clusterrun.script(COUNTS, "--debug", "1", "--hang-timeout", "0.2", workers=2, args=["a"])
    (port,) = job.wait_for(r"rank 1 on \S+ waits for a debugger on port (\d+) of 127\.0\.0\.1\n")
    job.wait_for(r"rank 0 total 1 \['a'\] __main__")

    with Debugger(int(port)) as debugger:
        debugger.attach({clusterrun.folder / "script0.py": [PLACE]})
        for step in range(2):
            thread, _, line = debugger.stopped()
            assert (line, debugger.value(thread, "step")) == (PLACE, str(step))
            debugger.resume(thread)
        ended = job.ended()

    assert "[rank 1] rank 1 total 1 ['a'] __main__" in ended.out
    assert ended.code == 3
    assert "no rank has printed" not in ended.err


def test_an_interpreter_without_debugpy(clusterrun: Launcher) -> None:
    """The message says what to install, and no worker starts."""
    python = clusterrun.folder / "python"
    # Without site-packages.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)

    ended = clusterrun.script(COUNTS, "--debug", "0", "--python", str(python), workers=2).ended()

    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"clusterrun: error: --debug needs debugpy, which {python} does not have\n"
        f"  type {python} -m pip install debugpy\n"
    )
