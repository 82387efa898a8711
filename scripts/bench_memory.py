"""Measure the memory of ranks that train, side by side: clusterrun, torchrun, and the ratio.

Memory is PSS: a page shared by n processes counts 1/n. All ranks wait after three steps of
DistributedDataParallel with AdamW. Then their memory is added up: of the ranks with their children,
and of all processes of the job, the launcher's included.
"""

import math
import tempfile
from functools import partial
from pathlib import Path

import psutil
from side_by_side import (
    OURS,
    SECONDS_TO_END,
    THEIRS,
    Measured,
    command,
    medians,
    parser,
    proportional_megabytes,
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
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
dist.barrier()
Path(sys.argv[1], f"{dist.get_rank()}.trained").write_text(f"{os.getpid()}")
time.sleep(600)
"""


def main() -> None:
    """Measure, then print the medians."""
    options = parser("Weigh ranks after three steps of training.", nproc=8).parse_args()
    measures = {name: partial(megabytes, name, options.nproc) for name in (OURS, THEIRS)}
    held = medians(options.runs, measures, warm_up=False)
    what = f"memory of {options.nproc} ranks after 3 steps of DDP with AdamW"
    for whose, ours, theirs in zip(
        ("", ", launcher included"), held[OURS], held[THEIRS], strict=True
    ):
        print(row(f"{what}{whose} (PSS)", ours, theirs, unit="MB", digits=0))


def megabytes(name: str, nproc: int) -> Measured:
    """Return the memory of the ranks of one job, and of all its processes, in MB."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "trains.py")
        script.write_text(PROGRAM)
        with started(command(name, nproc, script, folder)) as job:
            trained = written_by_all(Path(folder), "*.trained", nproc, SECONDS_TO_END, job)
            if len(trained) < nproc:
                job.complain(f"{len(trained)} of {nproc} ranks trained")
                return math.inf, math.inf
            ranks = [psutil.Process(int(text)) for text in trained.values()]
            return weight(ranks), weight([psutil.Process(job.process.pid)])


def weight(processes: list[psutil.Process]) -> float:
    """Return the memory of these processes and all their descendants in MB."""
    counted = {*processes, *(child for it in processes for child in it.children(recursive=True))}
    return sum(map(proportional_megabytes, counted))


if __name__ == "__main__":
    main()
