"""Time the reading of a machine and the planning of its workers, which every start waits for.

The machine is invented: 256 CPUs in eight NUMA nodes, and eight GPUs. Run this from the repository's
root: ``PYTHONPATH=. python scripts/bench_machine.py``. hwloc's lstopo reads the same files, and
numactl reads the machine that this runs on; each is timed as a process of its own if it is
installed. Prints rows of a Markdown table with medians in milliseconds.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from clusterrun.cpuset import CpuSet
from clusterrun.job.job import Job
from clusterrun.job.options import NumaBinding
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.planning.binding import bind_own_workers
from clusterrun.planning.placement import BindingRequest
from clusterrun.planning.worker_slots import worker_slots

from tests.machine_trees import dgx_a100, write_tree
from tests.plans import job


def main() -> None:
    """Measure, then print the medians."""
    arguments = argparse.ArgumentParser(description="Time the reading of a machine.")
    arguments.add_argument("--runs", type=int, default=51)
    runs = arguments.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        root = write_tree(Path(folder), dgx_a100())
        large, typed = inspect(Tree(root), {}, None, "large"), job()
        print("| 256 CPUs, 8 NUMA nodes, 8 GPUs | ms |\n|---|---|")
        show("reading it", lambda: inspect(Tree(root), {}, None, "large"), runs)
        show(
            "planning 8 workers, near",
            lambda: bind_own_workers(
                large, BindingRequest(worker_slots(typed, large), NumaBinding.NEAR)
            ),
            runs,
        )
        for mode in (NumaBinding.NEAR, NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX):
            name = f"reading it, and planning 8 workers, {mode.value}"
            show(name, partial(read_and_plan, root, typed, mode), runs)
        others(["lstopo-no-graphics", "--of", "xml"], runs, {"HWLOC_FSROOT": folder})
    print("\n| this machine | ms |\n|---|---|")
    allowed = CpuSet(os.sched_getaffinity(0))
    show("reading it", lambda: inspect(Tree(Path("/")), {}, allowed, "this"), runs)
    others(["lstopo-no-graphics", "--of", "xml"], runs, {})
    others(["numactl", "--hardware"], runs, {})


def read_and_plan(root: Path, typed: Job, mode: NumaBinding) -> None:
    machine = inspect(Tree(root), {}, None, "large")
    bind_own_workers(machine, BindingRequest(worker_slots(typed, machine), mode))


def show(name: str, action: Callable[[], object], runs: int) -> None:
    """Print the time that an action takes: the median in milliseconds."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        action()
        taken.append(1000 * (time.perf_counter() - began))
    print(f"| {name} | {statistics.median(taken):.1f} |")


def others(command: list[str], runs: int, variables: Mapping[str, str]) -> None:
    """Print the time that another program takes, if it is installed."""
    name = " ".join(command)
    if shutil.which(command[0]) is None:
        print(f"| {name} | not installed |")
        return
    environment = {**os.environ, **variables}

    def run() -> None:
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True, timeout=60)

    show(name, run, runs)


if __name__ == "__main__":
    main()
