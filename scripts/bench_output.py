"""Time a job that prints much, side by side: clusterrun, torchrun --tee 3, and the ratio.

Both write log files and print to one file, which must hold every line whole. Prints one row of a
Markdown table.
"""

import math
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from side_by_side import OURS, THEIRS, Measured, command, medians, parser, row, run_time

OPTIONS = {OURS: (), THEIRS: ("--tee", "3")}
PROGRAM = """
import os, sys

for number in range(int(sys.argv[1])):
    print(os.environ["RANK"], number, "loss: 0.123456, accuracy: 0.987")
"""


def main() -> None:
    """Measure, then print the medians; fail if clusterrun tore or lost a line."""
    arguments = parser("Time a job that prints much.", nproc=2)
    arguments.add_argument("--lines", type=int, default=300_000, help="that each rank prints")
    options = arguments.parse_args()
    measures = {name: partial(print_time, name, options.nproc, options.lines) for name in OPTIONS}
    taken = medians(options.runs, measures)
    what = f"{options.nproc} ranks that print {options.lines:,} lines each"
    print(row(what, *taken[OURS], *taken[THEIRS]))


def print_time(name: str, nproc: int, lines: int) -> Measured:
    """Return how long one job takes, from the command to its end; check what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        script, output = Path(folder, "prints.py"), Path(folder, "output.txt")
        script.write_text(PROGRAM)
        words = command(name, nproc, *OPTIONS[name], f"--log-dir={folder}", script, str(lines))
        with output.open("wb") as file:
            taken = run_time(words, file)
        if name == OURS and math.isfinite(taken):
            check(output, nproc, lines)
    return (taken,)


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


if __name__ == "__main__":
    main()
