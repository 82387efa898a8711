"""Run random tests round after round, and continue where the last run stopped.

    python scripts/run_rounds.py --rounds 30 rounds.jsonl tests/hosts/test_random_faults.py

A round has as many drawn cases as one run of the long tier, and round 7 draws the same ones each time.
The file gets a line for each round of a test file: its commit, how it ended, and its last line. Rounds
of the same commit that are in the file are not run again. Exit code 1: a round failed.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plant_faults import commit_of, results_in

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--rounds", type=int, required=True, help="of each file, from round 0 on")
    parser.add_argument("results", type=Path, help="the file of results")
    parser.add_argument("tests", nargs="+", help="files of tests")
    options = parser.parse_args()
    commit = commit_of(ROOT)
    results: list[dict[str, Any]] = results_in(options.results)
    done = {(it["test"], it["round"]) for it in results if it["commit"] == commit}
    for number in range(options.rounds):
        for test in options.tests:
            if (test, number) not in done:
                result = {"commit": commit, "test": test, "round": number, **run(test, number)}
                results.append(result)
                with options.results.open("a") as file:
                    print(json.dumps(result), file=file)
                print(f"{test} round {number}: {result['summary']}", flush=True)
    return int(any(it["code"] != 0 for it in results if it["commit"] == commit))


def run(test: str, number: int) -> dict[str, Any]:
    """Return how a round of a file of tests ended; what failed is printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", f"--first-round={number}", test]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(done.stdout, flush=True)
    summary = (done.stdout.strip() or done.stderr.strip()).rpartition("\n")[2]
    return {"code": done.returncode, "seconds": time.monotonic() - began, "summary": summary}


if __name__ == "__main__":
    sys.exit(main())
