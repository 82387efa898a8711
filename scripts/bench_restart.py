"""Time a restart, side by side: from a rank's failure to the next attempt's first all_reduce.

The clock starts when a rank exits while the others train, and stops when the last rank of the next
attempt has finished an all_reduce.
"""

import math
import tempfile
from functools import partial
from pathlib import Path

from side_by_side import (
    OURS,
    THEIRS,
    Measured,
    command,
    medians,
    parser,
    row,
    started,
    written_by_all,
)

PROGRAM = """
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
Path(sys.argv[1], f"{attempt}.{rank}.reduced").write_text(f"{time.monotonic()}")
if attempt == "0":
    for step in range(1000):
        dist.all_reduce(torch.ones(1))
        if step == 3 and rank == dist.get_world_size() - 1:
            Path(sys.argv[1], "failed").write_text(f"{time.monotonic()}")
            os._exit(1)
        time.sleep(0.1)
dist.destroy_process_group()
"""

SECONDS_TO_RESTART = 60.0
"""After which a launcher is taken to hang; from its start, as all of it is one job."""


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Time a restart after a failure.", nproc=8).parse_args()
    measures = {name: partial(seconds_down, name, options.nproc) for name in (OURS, THEIRS)}
    taken = medians(options.runs, measures, warm_up=False)
    what = f"restart of {options.nproc} ranks, from the failure to the next all_reduce"
    print(row(what, *taken[OURS], *taken[THEIRS]))


def seconds_down(name: str, nproc: int) -> Measured:
    """Return the seconds from the failure until all ranks of the next attempt are at work."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "fails_once.py")
        script.write_text(PROGRAM)
        words = command(name, nproc, "--max-restarts=1", script, folder)
        with started(words) as job:
            at_work = written_by_all(Path(folder), "1.*.reduced", nproc, SECONDS_TO_RESTART, job)
            if len(at_work) < nproc:
                job.complain(f"{len(at_work)} of {nproc} ranks work in the second attempt")
                return (math.inf,)
        failed = float(Path(folder, "failed").read_text())
        return (max(map(float, at_work.values())) - failed,)


if __name__ == "__main__":
    main()
