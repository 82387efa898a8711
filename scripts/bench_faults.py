"""Time the end of a job on four hosts after a fault on one of them.

Hosts are network namespaces of this machine, made by the tests' code. Run it as root from the
repository's root: ``PYTHONPATH=. python scripts/bench_faults.py``. Prints rows of a Markdown table:
the fault, and the seconds until the last surviving agent ended (median, slowest run).
"""

import argparse
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from side_by_side import exit_on_sigterm, last_end

from tests.contract.launched import Job, Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import run_of
from tests.hosts.network import network

STRUCK = 1
"""The host with the fault."""

SECONDS_TO_END = 120.0

PROGRAM = """
import os, pathlib, signal, sys, time
print("up", flush=True)
while os.environ["RANK"] != "1" or not pathlib.Path("fail").exists():
    time.sleep(0.001)
pathlib.Path("failed").write_text(str(time.monotonic()))
os._exit(1)
"""

Strike = Callable[[Path, Sequence[Host], Sequence[Job]], float]
"""Causes the fault; returns when it happened, by the monotonic clock in seconds."""


def main() -> None:
    """Measure, then print the medians."""
    exit_on_sigterm()
    arguments = argparse.ArgumentParser(description="Time the end of a job on four hosts.")
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--heartbeat-timeout", type=float, default=15.0, metavar="SECONDS")
    options = arguments.parse_args()
    silence = options.heartbeat_timeout
    faults: list[tuple[str, Strike, tuple[int, ...]]] = [
        ("a worker fails", fail_a_worker, (0, 1, 2, 3)),
        ("an agent is killed", kill_an_agent, (0, 2, 3)),
        (f"a node is cut off, {silence:g} s of silence", cut_a_node, (0, 1, 2, 3)),
        (f"an agent is frozen, {silence:g} s of silence", freeze_an_agent, (0, 2, 3)),
    ]
    with network(run_of(os.getpid()), "bench", "n0", "n1", "n2", "n3") as made:
        for name, strike, survivors in faults:
            taken = [seconds(made.hosts, strike, survivors, silence) for _ in range(options.runs)]
            made.restore()
            print(f"| {name} | {statistics.median(taken):.2f} s | {max(taken):.2f} s |", flush=True)


def seconds(
    hosts: Sequence[Host], strike: Strike, survivors: Sequence[int], silence: float
) -> float:
    """Return the seconds from the fault to the end of the last surviving agent."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        script = launcher.folder / "waits.py"
        script.write_text(PROGRAM)
        place = ("--nnodes", "4", "--master-addr", hosts[0].address)
        words = (*place, "--heartbeat-timeout", f"{silence:g}")
        jobs = [
            launcher.command(
                *words, "--node-rank", str(rank), str(script), workers=1, around=host.around
            )
            for rank, host in enumerate(hosts)
        ]
        try:
            for job in jobs:
                job.wait_for("up")
            # At any moment between two heartbeats, at least one heartbeat after the start.
            time.sleep(1.0 + time.monotonic() % 1.0)
            began = strike(launcher.folder, hosts, jobs)
            ended = last_end([jobs[number].agent for number in survivors], SECONDS_TO_END)
            if ended == math.inf:
                sys.exit(f"agents still run after {SECONDS_TO_END:g} s")
        finally:
            hosts[STRUCK].join()
            for job in jobs:
                job.kill_all()
        return ended - began


def fail_a_worker(folder: Path, _hosts: Sequence[Host], _jobs: Sequence[Job]) -> float:
    """Rank 1 exits with code 1."""
    (folder / "fail").touch()
    deadline = time.monotonic() + SECONDS_TO_END
    while not (failed := folder / "failed").exists() or not failed.read_text():
        if time.monotonic() > deadline:
            sys.exit("rank 1 did not fail")
        time.sleep(0.001)
    return float(failed.read_text())


def kill_an_agent(_folder: Path, _hosts: Sequence[Host], jobs: Sequence[Job]) -> float:
    """The agent gets SIGKILL."""
    began = time.monotonic()
    jobs[STRUCK].signal(signal.SIGKILL)
    return began


def cut_a_node(_folder: Path, hosts: Sequence[Host], _jobs: Sequence[Job]) -> float:
    """The host loses its network."""
    hosts[STRUCK].cut()
    return time.monotonic()


def freeze_an_agent(_folder: Path, _hosts: Sequence[Host], jobs: Sequence[Job]) -> float:
    """The agent gets SIGSTOP and stays stopped."""
    began = time.monotonic()
    jobs[STRUCK].signal(signal.SIGSTOP)
    return began


if __name__ == "__main__":
    main()
