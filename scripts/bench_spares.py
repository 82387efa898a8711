"""Time the loss of a node on four hosts: from its processes' SIGKILL to the next attempt's all_reduce.

The workers are killed with their agent: torchrun's would go on, and no other node notice anything.

With clusterrun, a fifth host is a spare; torchrun goes on with three of four (``--nnodes 3:4``, c10d).
Two ranks on each host, gloo. Hosts are network namespaces of this machine, made by the tests' code.
Run it as root from the repository's root: ``PYTHONPATH=. python scripts/bench_spares.py``. Prints a
row of a Markdown table with medians.
"""

import argparse
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from side_by_side import OURS, THEIRS, exit_on_sigterm, row

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import run_of
from tests.hosts.network import network

RANKS = 2
"""On each host."""

STRUCK = 2
"""The host whose agent is killed."""

SECONDS_TO_MEET = 150.0
"""torchrun's agents notice a lost one after 15 s, and wait 30 s for another."""

PROGRAM = """
import os, pathlib, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
mark = pathlib.Path("met") / f"{os.uname().nodename}-{os.getpid()}"
mark.with_suffix(".part").write_text(f"{time.monotonic()} {dist.get_world_size()}")
mark.with_suffix(".part").rename(mark)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""


def main() -> None:
    """Measure, then print the medians."""
    exit_on_sigterm()
    arguments = argparse.ArgumentParser(description="Time the loss of a node on four hosts.")
    arguments.add_argument("--runs", type=int, default=5, help="of each; the median counts")
    arguments.add_argument("--alone", action="store_true", help="without torchrun, which waits")
    options = arguments.parse_args()
    launchers = (OURS,) if options.alone else (OURS, THEIRS)
    taken: dict[str, list[float]] = {launcher: [] for launcher in launchers}
    with network(run_of(os.getpid()), "spares", "n0", "n1", "n2", "n3", "n4") as made:
        for _ in range(options.runs):
            for launcher, seconds in taken.items():
                seconds.append(seconds_to_next_attempt(launcher, made.hosts))
    medians = {launcher: statistics.median(seconds) for launcher, seconds in taken.items()}
    ours, theirs = medians[OURS], medians.get(THEIRS, math.nan)
    print(row("from the loss of a node to the next attempt's all_reduce, 8 ranks", ours, theirs))


def seconds_to_next_attempt(launcher: str, hosts: Sequence[Host]) -> float:
    """Return the seconds from the SIGKILL until all ranks of the next attempt have met."""
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(sys.executable).with_name(launcher)
        started = Launcher(Path(folder), str(beside))
        met = started.folder / "met"
        met.mkdir()
        script = started.folder / "reduces.py"
        script.write_text(PROGRAM)
        try:
            jobs = start(started, launcher, hosts, script)
            if last_meeting(met, after=0.0) == math.inf:
                sys.exit(f"the ranks of {launcher} did not meet")
            began = time.monotonic()
            jobs[STRUCK].signal(signal.SIGKILL)
            for process in jobs[STRUCK].processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return last_meeting(met, after=began) - began
        finally:
            for job in started.jobs:
                job.kill_all()


def start(started: Launcher, launcher: str, hosts: Sequence[Host], script: Path) -> list[Job]:
    """Start the job: by clusterrun with the fifth host as a spare."""
    address = hosts[0].address
    ours = ("--nnodes", "4", "--spares", "1", "--master-addr", address)
    meeting = ("--rdzv-backend", "c10d", "--rdzv-id", "spares", "--rdzv-endpoint", address)
    theirs = ("--nnodes", "3:4", "--max-restarts", "3", *meeting)
    words = ours if launcher == OURS else theirs
    jobs = []
    for number, host in enumerate(hosts if launcher == OURS else hosts[:4]):
        rank = ("--node-rank", f"{number}") if launcher == OURS else ()
        jobs.append(
            started.command(
                *(*words, *rank, str(script)),
                workers=RANKS,
                around=host.around,
                environ={"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            )
        )
    return jobs


def last_meeting(met: Path, after: float) -> float:
    """Return when the last rank of a world has met all others; ``math.inf`` if one does not.

    Args:
        met: the folder where each rank writes when it has.
        after: by the monotonic clock; who has met before that does not count.

    """
    deadline = time.monotonic() + SECONDS_TO_MEET
    while time.monotonic() < deadline:
        marks = [mark.read_text().split() for mark in met.iterdir() if not mark.suffix]
        new = [(float(at), int(size)) for at, size in marks if float(at) > after]
        if new and len(new) == new[-1][1]:
            return max(at for at, _ in new)
        time.sleep(0.01)
    return math.inf


if __name__ == "__main__":
    main()
