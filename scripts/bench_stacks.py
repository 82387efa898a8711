"""Measure five popular stacks of packages: forked, spawned, and under torchrun.

A rank is ready when it has imported the stack and done one all_reduce. When all are ready, their
memory is added up (PSS: a page shared by n processes counts 1/n), and they exit. Processor time is
that of all processes of the job.

    scripts/bench_stacks.py --python ENVIRONMENT/bin/python

with an environment that has torch, transformers, lightning, datasets, pandas and scikit-learn.
"""

import math
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
from free_ports import free_port
from side_by_side import (
    OURS,
    SECONDS_TO_END,
    Measured,
    command,
    medians,
    parser,
    proportional_megabytes,
    started,
    written_by_all,
)

STACKS = {
    "torch": "import torch",
    "torch, transformers, lightning": "import torch\nimport transformers\nimport lightning",
    "torch, datasets": "import torch\nimport datasets",
    "torch, pandas, sklearn": "import torch\nimport pandas\nimport sklearn.linear_model",
    "numpy, pandas, torch, sklearn, transformers": (
        "import numpy\nimport pandas\nimport torch\nimport sklearn.linear_model\nimport transformers"
    ),
}

PROGRAM = """
import torch.distributed as dist
import os
import sys
import time
from pathlib import Path

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
Path(sys.argv[1], f"{dist.get_rank()}.ready").write_text(f"{os.getpid()} {time.monotonic()}")
while not Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
dist.destroy_process_group()
"""

AUTO, SPAWN, TORCHRUN = "clusterrun", "clusterrun --start-method spawn", "torchrun"


def main() -> None:
    """Measure, then print a table of medians."""
    arguments = parser("Time and weigh ranks that import real stacks.", nproc=0)
    arguments.add_argument("--python", default=sys.executable, help="has the packages")
    arguments.add_argument("--ranks", default="2,8", help="numbers of ranks")
    options = arguments.parse_args()
    print("| stack | ranks | launcher | ready | to the end | processor time | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for stack, imports in STACKS.items():
        for nproc in map(int, options.ranks.split(",")):
            measures = {
                name: partial(measured, words(name, options.python, nproc), nproc, imports)
                for name in (AUTO, SPAWN, TORCHRUN)
            }
            for name, taken in medians(options.runs, measures).items():
                ready, whole, cpu, memory = taken
                cells = [f"{ready:.2f} s", f"{whole:.2f} s", f"{cpu:.1f} s", f"{memory:.0f} MB"]
                print(f"| {stack} | {nproc} | {name} | {' | '.join(cells)} |", flush=True)


def words(name: str, python: str, nproc: int) -> list[str]:
    """Return the command without its script."""
    if name == TORCHRUN:
        run = [python, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
        return [*run, f"--nproc-per-node={nproc}"]
    return [*command(OURS, nproc), "--python", python, *name.split()[1:]]


def measured(launch: Sequence[str], nproc: int, imports: str) -> Measured:
    """Return seconds until all ranks are ready, until the end, of CPU time, and megabytes."""
    fails = (math.inf,) * 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(f"{imports}\n{PROGRAM}")
        before, start = processor_seconds(), time.monotonic()
        with started([*launch, str(script), name]) as job:
            ready = written_by_all(folder, "*.ready", nproc, SECONDS_TO_END, job)
            if len(ready) < nproc:
                job.complain(f"{len(ready)} of {nproc} ranks were ready")
                return fails
            pids, times = zip(*(text.split() for text in ready.values()), strict=True)
            memory = sum(proportional_megabytes(psutil.Process(int(pid))) for pid in pids)
            let_go = time.monotonic()
            (folder / "go").touch()
            if job.exit_code(SECONDS_TO_END) != 0:
                job.complain("did not end well")
                return fails
            ended = time.monotonic()
        seconds_ready = max(map(float, times)) - start
        whole = seconds_ready + ended - let_go
        return seconds_ready, whole, processor_seconds() - before, memory


def processor_seconds() -> float:
    """Return the CPU time of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
