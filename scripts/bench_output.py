"""Time a job that prints much, side by side: clusterrun, torchrun --tee 3, and the ratio.

Both keep log files and print to one file, which must hold every line whole. Both commands are those
beside this interpreter, and take turns. Prints one row of a Markdown table.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

LAUNCHERS = {"clusterrun": (), "torchrun": ("--tee", "3")}
PROGRAM = """
import os, sys

for number in range(int(sys.argv[1])):
    print(os.environ["RANK"], number, "loss: 0.123456, accuracy: 0.987")
"""


def main() -> None:
    """Measure, then print the medians; fail if clusterrun tore or lost a line."""
    parser = argparse.ArgumentParser(description="Time a job that prints much.")
    parser.add_argument("--runs", type=int, default=5, help="of each launcher; the median counts")
    parser.add_argument("--nproc", type=int, default=2, help="ranks")
    parser.add_argument("--lines", type=int, default=300_000, help="that each rank prints")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "prints.py")
        script.write_text(PROGRAM)
        medians = measure(script, options.nproc, options.lines, options.runs)
    print(row(options.nproc, options.lines, medians))


def measure(script: Path, nproc: int, lines: int, runs: int) -> dict[str, float]:
    """Return the median seconds of each launcher; a first run of each, not counted, warms up."""
    times: dict[str, list[float]] = {launcher: [] for launcher in LAUNCHERS}
    for _ in range(runs + 1):
        for launcher, taken in times.items():
            taken.append(seconds(launcher, script, nproc, lines))
    return {launcher: statistics.median(taken[1:]) for launcher, taken in times.items()}


def seconds(launcher: str, script: Path, nproc: int, lines: int) -> float:
    """Return how long one job takes, from the command to its end; check what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output.txt")
        command = [
            str(Path(sys.executable).with_name(launcher)),
            *LAUNCHERS[launcher],
            f"--nproc-per-node={nproc}",
            f"--log-dir={folder}",
            str(script),
            str(lines),
        ]
        # Set, so that torchrun has nothing to warn of.
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        start = time.perf_counter()
        with output.open("wb") as file:
            subprocess.run(command, env=environ, stdout=file, check=True, timeout=600)
        taken = time.perf_counter() - start
        if launcher == "clusterrun":
            check(output, nproc, lines)
    return taken


def check(output: Path, nproc: int, lines: int) -> None:
    """Exit with a message if a line is torn, lost or doubled."""
    wanted = Counter(
        f"[rank {rank}] {rank} {number} loss: 0.123456, accuracy: 0.987"
        for rank in range(nproc)
        for number in range(lines)
    )
    found = Counter(output.read_text().splitlines())
    if found != wanted:
        sys.exit(f"{(wanted - found).total()} lines torn or lost, {(found - wanted).total()} other")


def row(nproc: int, lines: int, medians: dict[str, float]) -> str:
    """Return the medians and their ratio as a row of a Markdown table."""
    ours, theirs = (medians[launcher] for launcher in LAUNCHERS)
    what = f"{nproc} ranks that print {lines:,} lines each"
    return f"| {what} | {ours:.2f} s | {theirs:.2f} s | {theirs / ours:.1f} times |"


if __name__ == "__main__":
    main()
