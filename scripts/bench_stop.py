"""Time from a rank's failure to the SIGTERM of the last other rank, side by side."""

import math
import tempfile
from functools import partial
from pathlib import Path

from side_by_side import (
    OURS,
    SECONDS_TO_END,
    THEIRS,
    Measured,
    command,
    medians,
    parser,
    row,
    started,
    written,
)

PROGRAM = """
import os
import random
import signal
import sys
import time
from pathlib import Path

folder, rank, world_size = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def note_the_time(*_):
    now = time.monotonic()
    (folder / f"{rank}.term").write_text(f"{now}")
    os._exit(0)

signal.signal(signal.SIGTERM, note_the_time)
(folder / f"{rank}.ready").touch()
if rank == 0:
    while len(list(folder.glob("*.ready"))) < world_size:
        time.sleep(0.01)
    # At another moment in each run: a launcher may poll.
    time.sleep(random.uniform(0.5, 1.0))
    (folder / "failed").write_text(f"{time.monotonic()}")
    os._exit(1)
time.sleep(600)
"""


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Time how soon all ranks hear of a failure.", nproc=8).parse_args()
    measures = {name: partial(milliseconds, name, options.nproc) for name in (OURS, THEIRS)}
    taken = medians(options.runs, measures, warm_up=False)
    what = f"a rank of {options.nproc} fails: the last of the others gets SIGTERM"
    print(row(what, *taken[OURS], *taken[THEIRS], unit="ms", digits=0))


def milliseconds(name: str, nproc: int) -> Measured:
    """Return how long after the failure the last rank got the signal."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "fails.py")
        script.write_text(PROGRAM)
        with started(command(name, nproc, script, folder)) as job:
            job.exit_code(SECONDS_TO_END)
            told = written(Path(folder), "*.term")
            if len(told) < nproc - 1:
                job.complain(f"{len(told)} of {nproc - 1} ranks got SIGTERM")
                return (math.inf,)
        failed = float(Path(folder, "failed").read_text())
        return (1000 * (max(map(float, told.values())) - failed),)


if __name__ == "__main__":
    main()
