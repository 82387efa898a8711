"""What ranks cost until they are ready, and to their end: forked, spawned, and under torchrun.

A script says that it is ready, with ``MARK_READY`` in its text, and goes on when all ranks have. Memory is PSS: a
page shared by n processes counts 1/n. Processor time is that of all processes of the job.
"""

import math
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
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
    proportional_megabytes,
    started,
    written_by_all,
)

AUTO, SPAWN, TORCHRUN = "clusterrun", "clusterrun --start-method spawn", "torchrun"

MARK_READY = """
import os
import sys
import time
from pathlib import Path


def ready():
    mark = Path(sys.argv[1], f"{os.environ['RANK']}.ready")
    mark.write_text(f"{os.getpid()} {time.monotonic()}")
    while not Path(sys.argv[1], "go").exists():
        time.sleep(0.01)
"""
"""A function of a script, whose first argument is a folder: all ranks wait in it for each other."""


def words(name: str, python: str, nproc: int) -> list[str]:
    """Return the command without its script."""
    if name == TORCHRUN:
        run = [python, "-m", "torch.distributed.run", f"--master-port={free_port()}"]
        return [*run, f"--nproc-per-node={nproc}"]
    return [*command(OURS, nproc), "--python", python, *name.split()[1:]]


def measured(launch: Sequence[str], nproc: int, text: str) -> Measured:
    """Return seconds until all ranks of a script are ready, until the end, of CPU time, and megabytes."""
    fails = (math.inf,) * 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(text)
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


def print_table(kind: str, texts: Mapping[str, str], python: str, ranks: str, runs: int) -> None:
    """Measure scripts, by name, with each number of ranks, and print a Markdown table of medians."""
    print(f"| {kind} | ranks | launcher | ready | to the end | processor time | memory |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for what, text in texts.items():
        for nproc in map(int, ranks.split(",")):
            measures = {
                name: partial(measured, words(name, python, nproc), nproc, text)
                for name in (AUTO, SPAWN, TORCHRUN)
            }
            for name, taken in medians(runs, measures).items():
                ready, whole, cpu, memory = taken
                cells = [f"{ready:.2f} s", f"{whole:.2f} s", f"{cpu:.1f} s", f"{memory:.0f} MB"]
                print(f"| {what} | {nproc} | {name} | {' | '.join(cells)} |", flush=True)
