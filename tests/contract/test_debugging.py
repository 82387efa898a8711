"""Debuggers of one rank: ``--debug``, ``--pdb``; and profiles: ``--profile``."""

import gzip
import json
import re
import sys
from pathlib import Path

import pytest

from tests.contract.debugger import Debugger
from tests.contract.launched import COMMAND, Launcher
from tests.contract.shell import Shell

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


ALL_FAIL = """
import atexit, os

def fails(number):
    raise ValueError(f"bad {number}")

atexit.register(print, "exit handler of", os.environ["RANK"])
fails(int(os.environ["RANK"]) + 41)
"""


@pytest.mark.needs("bash")
def test_pdb_opens_where_the_first_rank_fails(shell: Shell) -> None:
    """The other rank fails, too: it waits, and opens none; then the job ends as ever."""
    shell.run(ALL_FAIL, "--nproc-per-node", "2", "--pdb")
    rank = int(shell.expect(r"clusterrun: rank (\d) has failed").group(1))
    shell.expect(r"\(Pdb\) ")

    shell.type("p 'the number is', number")
    # What the other rank prints may come between this and the next prompt.
    shell.expect(rf"\('the number is', {41 + rank}\)")
    shell.type("up")
    shell.expect(r"script.py\(8\)<module>")
    shell.type("q")

    shell.expect(f"exit handler of {rank}")
    shell.expect(rf"rank {rank} on \S+ failed: ValueError: bad {41 + rank}")
    assert shell.exit_code() == 1
    assert shell.left() == []


@pytest.mark.needs("bash")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_ctrl_c_at_pdb_ends_the_job(shell: Shell, workers: str) -> None:
    """At once: no grace period passes."""
    shell.run(ALL_FAIL, "--nproc-per-node", workers, "--pdb", "--shutdown-timeout", "60")
    shell.expect(r"\(Pdb\) ")

    shell.press("Ctrl-C")

    assert shell.exit_code() == 130
    assert shell.left() == []


@pytest.mark.long
@pytest.mark.needs("bash")
def test_pdb_in_a_module_of_one_worker(shell: Shell) -> None:
    """One worker has the terminal for itself; Ctrl-D leaves pdb; a module is run as by -m."""
    (shell.folder / "package").mkdir()
    (shell.folder / "package/module.py").write_text("import sys\nprint(sys.path[0])\n1 / 0\n")

    shell.type(f"{COMMAND} --nproc-per-node 1 --pdb -m package.module")

    shell.expect(str(shell.folder))
    shell.expect(r"module.py\(3\)<module>")
    shell.expect(r"\(Pdb\) ")
    shell.press("Ctrl-D")
    assert shell.exit_code() == 1


@pytest.mark.long
@pytest.mark.needs("bash")
def test_pdb_stays_away_from_exits(shell: Shell) -> None:
    """A script that calls ``sys.exit`` or gets Ctrl-C ends as ever."""
    shell.run("import sys; sys.exit(3)", "--nproc-per-node", "2", "--pdb")
    assert shell.exit_code() == 3

    waits = "import time\nprint('begun')\nwhile True: time.sleep(0.1)"
    shell.run(waits, "--nproc-per-node", "2", "--pdb")
    shell.expect("begun")
    shell.press("Ctrl-C")
    assert shell.exit_code() == 130


STEPS = """
import os, sys, torch

layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(int(sys.argv[1])):
    layer(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("rank", os.environ["RANK"], "has made", step + 1)
if len(sys.argv) > 2:
    raise ValueError(sys.argv[2])
"""


def recorded_steps(file: Path) -> int:
    """Return how many steps a profile has."""
    with gzip.open(file) as text:
        names = {event.get("name", "") for event in json.load(text)["traceEvents"]}
    return sum(name.startswith("ProfilerStep#") for name in names)


@pytest.mark.long
def test_some_steps_of_one_rank_are_recorded(clusterrun: Launcher) -> None:
    """The file lies with its output; the script is unchanged."""
    options = ("--log-dir", "logs", "--profile", "1")
    ended = clusterrun.script(STEPS, *options, workers=2, args=["20"]).ended(100)

    [file] = (clusterrun.folder / "logs").rglob("*.gz")
    assert ended.code == 0, ended.err
    assert sorted(re.findall(r"rank (\d) has made 20", ended.out)) == ["0", "1"]
    assert f"[rank 1] clusterrun: the profile of rank 1 is in {file}\n" in ended.err
    assert file.name == "rank-1.pt.trace.json.gz"
    assert file.with_name("rank-1.out").exists()
    assert recorded_steps(file) == 10


@pytest.mark.long
def test_a_profile_of_a_script_that_fails(clusterrun: Launcher) -> None:
    """What was recorded is kept, and its exception is reported as ever, without our frames."""
    ended = clusterrun.script(STEPS, "--profile", "0", workers=1, args=["12", "bad"]).ended(100)

    [file] = (clusterrun.folder / "clusterrun-logs").rglob("*.gz")
    assert ended.code == 1
    assert "rank 0 on" in ended.err
    assert "failed: ValueError: bad" in ended.err
    assert "wrapped_program" not in ended.err
    assert 0 < recorded_steps(file) < 10


@pytest.mark.long
def test_a_script_that_ends_before_the_profile_begins(clusterrun: Launcher) -> None:
    """It is named, with the steps that would have been recorded."""
    ended = clusterrun.script(STEPS, "--profile", "0", workers=1, args=["3"]).ended(100)

    assert ended.code == 0
    assert "no profile, as an optimizer has made 3 steps; steps 9 to 18 are recorded" in ended.err
    assert list((clusterrun.folder / "clusterrun-logs").rglob("*.gz")) == []
