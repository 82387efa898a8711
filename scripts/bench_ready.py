"""Time a job of one all_reduce, side by side: clusterrun, torchrun, and mpirun if it is installed.

The last row compares clusterrun with its promised limit: 1.3 times one Python's ``import torch``,
plus 0.25 s.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from side_by_side import (
    MPIRUN,
    OURS,
    THEIRS,
    Measured,
    is_installed,
    launch_time,
    medians,
    parser,
    row,
    run_time,
)

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total == dist.get_world_size()
dist.destroy_process_group()
"""

IMPORT = "import torch"


def main() -> None:
    """Measure, then print the medians."""
    arguments = parser("Time ranks through init_process_group and one all_reduce.", nproc=8)
    options = arguments.parse_args()
    launchers = [OURS, THEIRS, *filter(is_installed, [MPIRUN])]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "ready.py")
        script.write_text(PROGRAM)
        measures: dict[str, Callable[[], Measured]] = {
            name: partial(launch_time, name, options.nproc, script) for name in launchers
        }
        measures[IMPORT] = lambda: (run_time([sys.executable, "-c", IMPORT]),)
        taken = {name: value for name, (value,) in medians(options.runs, measures).items()}
    promise = 1.3 * taken[IMPORT] + 0.25
    others = {
        "": taken[THEIRS],
        ", and mpirun": taken.get(MPIRUN),
        f", and 1.3 times `{IMPORT}` ({taken[IMPORT]:.2f} s) + 0.25 s": promise,
    }
    for who, theirs in others.items():
        if theirs is not None:
            what = f"{options.nproc} ranks through init_process_group and an all_reduce{who}"
            print(row(what, taken[OURS], theirs))


if __name__ == "__main__":
    main()
