"""scripts/run_rounds.py continues where its last run stopped, and remembers what failed."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts/run_rounds.py"


def run(results: Path, rounds: int) -> tuple[int, list[int]]:
    """Return the exit code, and the rounds in the file of results; the file of tests has none."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--rounds", str(rounds), results, "tests/rounds.py"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode, [json.loads(line)["round"] for line in results.read_text().splitlines()]


def test_rounds_are_run_once(tmp_path: Path) -> None:
    """Also after a failure, which every later run reports."""
    results = tmp_path / "rounds.jsonl"

    assert run(results, 1) == (1, [0])
    assert run(results, 2) == (1, [0, 1])
    assert run(results, 2) == (1, [0, 1])
