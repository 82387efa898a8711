"""scripts/walk: jobs that fail, on several nodes, or called from Python, and those that do not end."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.contract.launched import plain_environment

ROOT = Path(__file__).parent.parent


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "program.py"


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


def test_a_failure_on_another_node(program: Path) -> None:
    """The agent of node 1 is walked, which has the first failure from node 0's."""
    program.write_text(
        dedent("""
            import os, time
            if os.environ["RANK"] == "0":
                raise SystemExit(3)
            time.sleep(100)
            """)
    )

    walked = walk("--of-node", "1", "--nnodes", "2", "--nproc-per-node", "1", program)

    assert ": exit code 3\n" in walked
    assert "\n    report " in walked
    assert walked.index("cli/entry.py:") < walked.index("report/ending.py:")


def test_a_call_from_python(program: Path) -> None:
    """The caller is walked, and the agent that it calls."""
    program.write_text(
        dedent("""
            import clusterrun, os
            def rank():
                return os.environ["RANK"]
            if __name__ == "__main__":
                assert clusterrun.launch(rank, nproc_per_node=2) == ["0", "1"]
            """)
    )

    walked = walk("python", program)

    _, caller, agent = walked.split("\nThe ")
    assert ": exit code 0\n" in walked
    assert "\nclients/python/launch.py:" in caller
    assert "\ncli/called.py:" in agent


def test_a_job_that_does_not_end_is_killed(program: Path) -> None:
    """What it has passed until then is printed."""
    program.write_text("import time; time.sleep(100)")

    walked = walk("--within", "3", "--nproc-per-node", "1", program)

    assert ": killed after 3 s\n" in walked
    assert "\ncli/entry.py:" in walked
