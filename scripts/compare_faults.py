"""Compare clusterrun and torchrun under the same faults, on one host and on three.

Hosts are network namespaces of this machine, made by the tests' code. Run it as root from the
repository's root: ``PYTHONPATH=. python scripts/compare_faults.py``. Prints the table of
docs/torchrun.md in Markdown: the fault, then for each launcher the seconds until the last surviving
agent ended, the exit codes, the cause that each agent named, and the number of processes left.
"""

import argparse
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from side_by_side import OURS, THEIRS, exit_on_sigterm, last_end

from tests.contract.launched import Ended, Job, Launcher, kill_marked
from tests.hosts.host import Host
from tests.hosts.namespaces import run_of
from tests.hosts.network import network

SECONDS_TO_SEE = 60.0
"""An agent that still runs so long after the fault is taken to run for ever."""

SECONDS_TO_VANISH = 3.0
"""What is alive so long after the agents' end is taken to be left."""

STRUCK = 1
"""The rank, and on three hosts the node, that is struck, unless it is node 0."""

STEPS = """
import os, signal, socket, subprocess, sys, time

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
fault = sys.argv[1] if rank == 1 else ""
# As a collective of NCCL's waits for ten minutes, and sees no closed connection.
waits = sys.argv[1] == "raise, unseen"
# As data loaders of some frameworks do.
subprocess.Popen(["sleep", "1000"], start_new_session=True)

# torchrun's own store may listen at MASTER_PORT.
port = int(os.environ["MASTER_PORT"]) + 1
if rank == 0:
    server = socket.create_server(("", port))
    calls = [server.accept()[0] for _ in range(size - 1)]
while rank:
    try:
        calls = [socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=20)]
        calls[0].settimeout(None)
        break
    except OSError:
        time.sleep(0.02)

for step in range(1_000_000):
    if step == 5:
        print("step 5", flush=True)
    if fault in ("raise", "raise, unseen", "kill") and os.path.exists("strike"):
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a bad batch")
    if waits and step >= 5:
        time.sleep(0.02)
        continue
    for call in calls if rank == 0 else ():
        if not call.recv(1):
            raise ConnectionError("connection closed by peer")
    for call in calls:
        call.sendall(b"x")
    if rank and not calls[0].recv(1):
        raise ConnectionError("connection closed by peer")
    time.sleep(0.02)
"""
"""No rank continues without the others, as in a training step; each has a child process."""


class Trial(NamedTuple):
    """One launcher's job before the fault."""

    folder: Path
    hosts: Sequence[Host]
    jobs: Sequence[Job]


class Fault(NamedTuple):
    """Something that goes wrong.

    Attributes:
        name: for the table.
        strike: lets it happen.
        word: what tells rank 1 to take part in it; "" if it does not.
        killed: the node whose agent is not waited for.
        nodes: how many the job has; each has two workers on one node, else one.

    """

    name: str
    strike: Callable[[Trial], object]
    word: str = "nothing"
    killed: int | None = None
    nodes: int = 1


def order(trial: Trial) -> None:
    """Let rank 1 do what its arguments say."""
    (trial.folder / "strike").touch()


def send(number: int, node: int) -> Callable[[Trial], object]:
    """Return what sends a signal to a node's agent."""
    return lambda trial: trial.jobs[node].signal(number)


def end_host(trial: Trial) -> None:
    """Let a host lose its power: nothing comes from it, and nothing runs on it, any more."""
    trial.hosts[STRUCK].cut()
    kill_marked(trial.jobs[STRUCK].mark)


FAULTS = (
    Fault("a rank raises an exception", order, "raise"),
    Fault("a rank is killed by SIGKILL", order, "kill"),
    Fault("SIGTERM to the launcher", send(signal.SIGTERM, 0)),
    Fault("SIGKILL to the launcher", send(signal.SIGKILL, 0), killed=0),
    Fault("3 nodes: a rank raises an exception", order, "raise", nodes=3),
    Fault("3 nodes: a rank raises, the others wait on", order, "raise, unseen", nodes=3),
    Fault("3 nodes: a rank is killed by SIGKILL", order, "kill", nodes=3),
    Fault("3 nodes: SIGTERM to one launcher", send(signal.SIGTERM, STRUCK), nodes=3),
    Fault("3 nodes: a launcher is killed", send(signal.SIGKILL, STRUCK), killed=STRUCK, nodes=3),
    Fault("3 nodes: node 0's launcher is killed", send(signal.SIGKILL, 0), killed=0, nodes=3),
    Fault("3 nodes: a launcher is frozen", send(signal.SIGSTOP, STRUCK), killed=STRUCK, nodes=3),
    Fault("3 nodes: a cable is cut", lambda trial: trial.hosts[STRUCK].cut(), nodes=3),
    Fault("3 nodes: a host loses its power", end_host, killed=STRUCK, nodes=3),
)

CAUSES = (
    re.compile(r"exit code \d+, from (rank \d+)"),
    re.compile(r"exit code \d+: (node \d+) was lost"),
    re.compile(r"exit code \d+: clusterrun received (SIG[A-Z]+)"),
    # torchrun's.
    re.compile(r"Root Cause .*?(rank +: \d+)", re.DOTALL),
    re.compile(r"SignalException: Process \d+ got (signal: \d+)"),
)

LAUNCHERS = ("clusterrun", "torchrun", "torchrun, c10d")


def main() -> None:
    """Run each fault once under each launcher."""
    exit_on_sigterm()
    arguments = argparse.ArgumentParser(description="Compare launchers by what faults do to jobs.")
    arguments.add_argument("--only", default="", metavar="TEXT", help="faults with it in the name")
    arguments.add_argument("--verbose", action="store_true", help="show what the launchers say")
    options = arguments.parse_args()
    print(f"| fault | {' | '.join(LAUNCHERS)} |\n|{' --- |' * (1 + len(LAUNCHERS))}", flush=True)
    with network(run_of(os.getpid()), "compare", "n0", "n1", "n2") as made:
        for fault in FAULTS:
            if options.only in fault.name:
                cells = [
                    outcome(name, fault, made.hosts, verbose=options.verbose) for name in LAUNCHERS
                ]
                print(f"| {fault.name} | {' | '.join(cells)} |", flush=True)


def outcome(launcher: str, fault: Fault, hosts: Sequence[Host], *, verbose: bool) -> str:
    """Return what becomes of a job that meets this fault."""
    with tempfile.TemporaryDirectory() as folder:
        program, *words = commands(launcher, fault.nodes, hosts[0].address)
        starter = Launcher(Path(folder), str(Path(sys.executable).with_name(program)))
        (starter.folder / "steps.py").write_text(STEPS)
        jobs = [
            starter.command(
                *(word.format(rank=rank) for word in words),
                *("steps.py", fault.word),
                workers=2 if fault.nodes == 1 else 1,
                around=hosts[rank].around,
            )
            for rank in range(fault.nodes)
        ]
        try:
            for job in jobs:
                job.wait_for("step 5")
            began = time.monotonic()
            fault.strike(Trial(starter.folder, hosts, jobs))
            survivors = [job for rank, job in enumerate(jobs) if rank != fault.killed]
            seconds = last_end([job.agent for job in survivors], SECONDS_TO_SEE) - began
            # Also a launcher that was killed takes a moment to end.
            over = [job for job in jobs if last_end([job.agent], SECONDS_TO_VANISH) < math.inf]
            running = len(set(survivors) - set(over))
            left = sum(len(job.left(SECONDS_TO_VANISH)) for job in over)
        finally:
            for host in hosts:
                host.join()
            for job in jobs:
                kill_marked(job.mark)
        ends = [job.ended() for job in jobs]
        for job in jobs:
            job.kill_all()
    if verbose:
        print(*(f"--- {launcher}, node {i}:\n{end.err}" for i, end in enumerate(ends)))
    return summary(seconds, [ends[jobs.index(job)] for job in survivors], running, left)


def commands(launcher: str, nodes: int, address: str) -> list[str]:
    """Return the command of each node, "{rank}" standing for its rank."""
    if nodes == 1:
        return [OURS] if launcher == OURS else [THEIRS, *_rendezvous(launcher, "localhost")]
    place = ["--nnodes", str(nodes), "--node-rank", "{rank}"]
    if launcher == "torchrun, c10d":
        return [THEIRS, *place, *_rendezvous(launcher, address)]
    return [OURS if launcher == OURS else THEIRS, *place, "--master-addr", address]


def _rendezvous(launcher: str, address: str) -> list[str]:
    if launcher == "torchrun":
        return []
    return [
        "--rdzv-backend",
        "c10d",
        "--rdzv-id",
        "compared",
        "--rdzv-endpoint",
        f"{address}:29400",
    ]


def summary(seconds: float, ends: Sequence[Ended], running: int, left: int) -> str:
    """Return a cell of the table.

    Args:
        seconds: from the fault to the last end.
        ends: of the agents that survived the fault, those that had to be killed included.
        running: how many these were.
        left: how many processes of the job were left on nodes whose agent had ended.

    """
    tell_left = f"{left} processes left" if left else "nothing left"
    if not ends:
        return tell_left
    if running:
        return f"{running} of {len(ends)} launchers still run after {SECONDS_TO_SEE:.0f} s"
    codes = ", ".join(str(end.code) for end in ends)
    named = ", ".join(cause(end.err) for end in ends)
    return f"{seconds:.1f} s; exit code {codes}; named: {named}; {tell_left}"


def cause(err: str) -> str:
    """Return the cause that a launcher's report in ``err`` names."""
    found = [
        re.sub(" *: ", " ", each.group(1)) for pattern in CAUSES for each in pattern.finditer(err)
    ]
    return found[-1] if found else "nothing"


if __name__ == "__main__":
    main()
