"""scripts/walk: jobs that fail, on several nodes, or called from Python, and those that do not end."""

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import plain_environment

ROOT = Path(__file__).parent.parent


def walk(*words: str | Path) -> str:
    """Return what ``scripts/walk`` prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/walk", "--functions", *words],
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def failure(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the walk of node 0's agent in a job whose rank on node 1 fails."""
    program = tmp_path_factory.mktemp("failure") / "fails.py"
    program.write_text(
        dedent("""
            import os, time
            if os.environ["RANK"] == "1":
                raise SystemExit(3)
            time.sleep(100)
            """)
    )
    return walk("--nnodes", "2", "--nproc-per-node", "1", program)


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the walk of a program that calls ``clusterrun.launch``."""
    program = tmp_path_factory.mktemp("call") / "calls.py"
    program.write_text(
        dedent("""
            import clusterrun, os
            def rank():
                return os.environ["RANK"]
            if __name__ == "__main__":
                assert clusterrun.launch(rank, nproc_per_node=2) == ["0", "1"]
            """)
    )
    return walk("python", program)


def test_a_failure_on_another_node(failure: str) -> None:
    """It is walked to the end, from the command line to the report."""
    assert ": exit code 3\n" in failure
    assert failure.index("\ncli/entry.py:") < failure.rindex("report/outcome.py:")


def test_a_call_from_python(call: str) -> None:
    """The caller is walked, and the agent that it calls."""
    _, caller, agent = call.split("\nThe ")

    assert ": exit code 0\n" in call
    assert "\nclients/python/launch.py:" in caller
    assert "run/caller.py:" in agent


def test_a_job_that_does_not_end_is_killed(tmp_path: Path) -> None:
    """What it has passed until then is printed."""
    program = tmp_path / "sleeps.py"
    program.write_text("import time; time.sleep(100)")

    walked = walk("--within", "3", "--nproc-per-node", "1", program)

    assert ": killed after 3 s\n" in walked
    assert "\ncli/entry.py:" in walked


def test_the_walks_of_the_page_are_real(failure: str, call: str) -> None:
    """An agent or a caller passes each file that docs/architecture.md has, and each function.

    Except those that the workers and their fork server pass.
    """
    passed = re.findall(r"(?m)^ *(\S+\.py):\d+ (\S+)$", failure + call)
    _, _, walks = (ROOT / "docs/architecture.md").read_text().partition("\n## Walks\n")

    missing = []
    for file, text in re.findall(r"(?m)^    (\S+) +(?:on [^:]+: )?(.*)$", walks):
        named = re.match(r"[\w.]+(?=[:,]|$)", text)
        name = named[0] if named else ""
        names = {function for other, function in passed if other == file}
        if not any(f"{function}.".startswith(f"{name}." if name else "") for function in names):
            missing.append(f"{file} {name}")
    elsewhere = ("workers/fork_server/", "clients/python/rank.py")
    assert [each for each in missing if not each.startswith(elsewhere)] == []
