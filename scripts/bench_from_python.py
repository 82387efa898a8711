"""Time calls from Python, side by side with ``torch.multiprocessing.spawn`` and torchrunx.

Each is measured inside a program that has imported torch already, as a notebook or a sweep has. The last
column is the other's time divided by clusterrun's.

torchrunx is left out where it is not installed: ``pip install torchrunx``.
"""

import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from side_by_side import SECONDS_TO_END, Measured, medians, parser, row

WORK = """
import os, sys, time
import torch
import torch.distributed as dist

def reduce_all(*_):
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total == dist.get_world_size()
    dist.destroy_process_group()

def reduce_as_spawned(rank, world, port):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)
    reduce_all()

def free_port():
    import socket
    with socket.socket() as sock:
        sock.bind(("", 0))
        return sock.getsockname()[1]
"""

TORCHRUNX = "torchrunx"

PROGRAMS = {
    "launch": """
if __name__ == "__main__":
    import clusterrun
    start = time.perf_counter()
    clusterrun.launch(reduce_all, nproc_per_node=RANKS)
    print(time.perf_counter() - start)
""",
    "torch.multiprocessing.spawn": """
if __name__ == "__main__":
    import torch.multiprocessing
    start = time.perf_counter()
    torch.multiprocessing.spawn(reduce_as_spawned, (RANKS, free_port()), nprocs=RANKS)
    print(time.perf_counter() - start)
""",
    TORCHRUNX: """
if __name__ == "__main__":
    import torchrunx
    one_thread = {"OMP_NUM_THREADS": "1"}
    launcher = torchrunx.Launcher(["localhost"], RANKS, backend=None, extra_env_vars=one_thread)
    start = time.perf_counter()
    launcher.run(reduce_all)
    print(time.perf_counter() - start)
""",
}


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Time functions on ranks.", nproc=8).parse_args()
    launchers = ["launch", "torch.multiprocessing.spawn"]
    if find_spec(TORCHRUNX):
        launchers.append(TORCHRUNX)
    else:
        print(f"{TORCHRUNX} is not installed, and left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], Measured]] = {
            name: partial(seconds_of, Path(folder), name, options.nproc) for name in launchers
        }
        found = medians(options.runs, measures, warm_up=False)
    ours = found.pop("launch")
    for name, theirs in found.items():
        what = f"launch of {options.nproc} ranks that do an all_reduce, and {name}"
        print(row(what, *ours, *theirs), flush=True)


def seconds_of(folder: Path, name: str, ranks: int) -> Measured:
    """Return the seconds that a program has measured; ``math.inf`` if it failed."""
    program = folder / f"time_{re.sub('[^a-z]+', '_', name)}.py"
    program.write_text(WORK + PROGRAMS[name].replace("RANKS", str(ranks)))
    ended = subprocess.run(
        [sys.executable, str(program)],
        # torchrunx leaves logs in the current folder.
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_TO_END,
        check=False,
    )
    if ended.returncode:
        print(ended.stderr[-2000:], file=sys.stderr)
        return (math.inf,)
    return (float(ended.stdout.split()[-1]),)


if __name__ == "__main__":
    main()
