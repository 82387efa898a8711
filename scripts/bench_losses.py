"""Time the loss of a node by its kind, on five hosts: to the next attempt's first all_reduce.

A job of ``--nnodes 3:5``, one rank on each host, gloo, and the default ``--heartbeat-timeout``. Hosts are
network namespaces of this machine, made by the tests' code. Run it as root from the repository's root:
``PYTHONPATH=. python scripts/bench_losses.py``. With ``--beside COMMAND`` another clusterrun runs in turn
with this one. Prints rows of a Markdown table with medians in seconds.
"""

import argparse
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench_spares import PROGRAM, last_meeting
from side_by_side import exit_on_sigterm

from tests.contract.launched import COMMAND, Job, Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import run_of
from tests.hosts.network import Network, network

Strike = Callable[[Sequence[Host], Sequence[Job]], object]
"""Causes the loss of a node."""


def main() -> None:
    """Measure, then print the medians."""
    exit_on_sigterm()
    arguments = argparse.ArgumentParser(description="Time the loss of a node by its kind.")
    arguments.add_argument("--runs", type=int, default=3, help="of each; the median counts")
    arguments.add_argument("--beside", metavar="COMMAND", help="another clusterrun")
    options = arguments.parse_args()
    commands = [*([options.beside] if options.beside else []), COMMAND]
    taken: dict[tuple[str, str], list[float]] = {}
    with network(run_of(os.getpid()), "losses", "n0", "n1", "n2", "n3", "n4") as made:
        for _ in range(options.runs):
            for loss, strike in LOSSES.items():
                for command in commands:
                    seconds = seconds_to_next_attempt(command, made, strike)
                    taken.setdefault((loss, command), []).append(seconds)
    print(f"| lost | {' | '.join(commands)} |")
    for loss in LOSSES:
        medians = (statistics.median(taken[loss, command]) for command in commands)
        print(f"| {loss} | {' | '.join(f'{each:.1f} s' for each in medians)} |")


def seconds_to_next_attempt(command: str, made: Network, strike: Strike) -> float:
    """Return the seconds from the loss until all ranks of the next attempt have met."""
    hosts = made.hosts
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder), command)
        met = launcher.folder / "met"
        met.mkdir()
        script = launcher.folder / "reduces.py"
        script.write_text(PROGRAM)
        # A single worker would import torch anew in each attempt.
        words = ("--nnodes", "3:5", "--start-method", "fork", "--master-addr", hosts[0].address)
        try:
            jobs = [
                launcher.command(
                    *(*words, "--node-rank", f"{number}", str(script)),
                    workers=1,
                    around=host.around,
                    environ={"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
                )
                for number, host in enumerate(hosts)
            ]
            if last_meeting(met, after=0.0) == math.inf:
                sys.exit(f"the ranks of {command} did not meet")
            # A lease runs from the first answer on.
            time.sleep(1.0)
            began = time.monotonic()
            strike(hosts, jobs)
            return last_meeting(met, after=began) - began
        finally:
            for job in launcher.jobs:
                job.kill_all()
            made.restore()


def agent_is_killed(_: Sequence[Host], jobs: Sequence[Job]) -> None:
    """Kill an agent; its workers end with it."""
    jobs[1].signal(signal.SIGKILL)


def cable_is_cut(hosts: Sequence[Host], _: Sequence[Job]) -> None:
    """Cut a host off; its processes live."""
    hosts[1].cut()


def host_dies(hosts: Sequence[Host], _: Sequence[Job]) -> None:
    """Cut a host off and kill its processes, whose end no packet reports."""
    hosts[1].cut()
    hosts[1].end_all()


LOSSES: Mapping[str, Strike] = {
    "an agent is killed": agent_is_killed,
    "a host dies": host_dies,
    "a cable is cut": cable_is_cut,
}


if __name__ == "__main__":
    main()
