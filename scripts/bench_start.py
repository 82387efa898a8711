"""Time the launch of an empty script side by side: clusterrun, torchrun, and the ratio.

Both commands are those beside this interpreter, and take turns, so that whatever else the machine
does meets both. Prints one row of a Markdown table.
"""

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import launcher

LAUNCHERS = ("clusterrun", "torchrun")


def main() -> None:
    """Measure, then print the medians."""
    parser = argparse.ArgumentParser(description="Time the launch of an empty script.")
    parser.add_argument("--runs", type=int, default=5, help="of each launcher; the median counts")
    parser.add_argument("--nproc", type=int, default=8, help="ranks")
    options = parser.parse_args()
    # pip does so for an installed package; a checkout may lie where Python must not write.
    compileall.compile_dir(Path(launcher.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "empty.py")
        script.touch()
        medians = measure(script, options.nproc, options.runs)
    print(row(options.nproc, medians))


def measure(script: Path, nproc: int, runs: int) -> dict[str, float]:
    """Return the median seconds of each launcher; a first run of each, not counted, warms up."""
    times: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    for _ in range(runs + 1):
        for name, taken in times.items():
            taken.append(seconds(name, script, nproc))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def seconds(name: str, script: Path, nproc: int) -> float:
    """Return how long one launch takes, from the command to its end."""
    command = [Path(sys.executable).with_name(name), f"--nproc-per-node={nproc}", script]
    # Set, so that torchrun has nothing to warn of.
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    subprocess.run(command, env=environ, check=True, timeout=300)
    return time.perf_counter() - start


def row(nproc: int, medians: dict[str, float]) -> str:
    """Return the medians and their ratio as a row of a Markdown table."""
    ours, theirs = (medians[name] for name in LAUNCHERS)
    what = f"launch of an empty script, {nproc} ranks"
    return f"| {what} | {ours:.2f} s | {theirs:.2f} s | {theirs / ours:.1f} times |"


if __name__ == "__main__":
    main()
