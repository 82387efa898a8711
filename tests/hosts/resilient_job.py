"""A job that survives the loss of nodes, and programs for its ranks."""

import math
from collections.abc import Sequence
from pathlib import Path

from tests.contract.launched import Job, Launcher
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes, codes, ended

PRINT_WORKER = """
    import pathlib, signal, sys
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT")
    attempt, host = os.environ["TORCHELASTIC_RESTART_COUNT"], os.uname().nodename
    print("pid", os.getpid(), flush=True)
    print("worker", *(os.environ[name] for name in names), "on", host, flush=True)
"""
"""Prints ``worker RANK WORLD_SIZE GROUP_RANK ATTEMPT on HOST``."""

WAIT_FOR_FINISH = f"""{RANKS_RENDEZVOUS}{PRINT_WORKER}
    while not pathlib.Path("finish").exists():
        time.sleep(0.02)
"""

RECORD_STEPS = f"""{RANKS_RENDEZVOUS}
    import signal
    signal.signal(signal.SIGTERM, lambda *_: None)
{PRINT_WORKER}
    with open(f"steps-{{attempt}}-{{host}}", "a", buffering=1) as steps:
        while not pathlib.Path("finish").exists():
            steps.write(f"{{time.monotonic()}}\\n")
            time.sleep(0.02)
"""
"""Records the time of each step, and ignores SIGTERM, as scripts do that save a checkpoint."""


class ResilientJob:
    """A job of the hosts n0, n1, ...; MASTER_ADDR is the first one."""

    def __init__(
        self,
        hosts: Sequence[Host],
        launcher: Launcher,
        *options: str,
        script: str = WAIT_FOR_FINISH,
    ) -> None:
        """Set the options of all agents, such as ``--spares 1``."""
        self.hosts = hosts
        self.folder = launcher.folder
        self._nodes = Nodes(launcher, hosts, script)
        self._options = (*options, "--master-addr", hosts[0].address)

    def join(self, rank: int, *options: str) -> Job:
        """Start an agent with this node rank on the host of this number."""
        return self._nodes.start(rank, *self._options, "--node-rank", str(rank), *options)

    def start(self, *options: str, nodes: int = 2, spares: int = 1) -> list[Job]:
        """Start an agent on each of the first hosts; wait for the workers, and until spares wait."""
        jobs = [self.join(rank, *options) for rank in range(nodes + spares)]
        for rank in range(nodes):
            jobs[rank].wait_for(f"worker {rank} {nodes} {rank} 0 on n{rank}")
        for spare in jobs[nodes:]:
            spare.wait_for("this node is a spare")
        return jobs

    def finish(self, *jobs: Job) -> list[str]:
        """Let all workers exit with 0, check that these agents do, and return their errors."""
        (self.folder / "finish").touch()
        ends = ended(jobs)
        assert codes(ends) == [0] * len(jobs), ends
        return [end.err for end in ends]


def overlap(folder: Path) -> float:
    """Return by how many seconds attempts overlapped at most; negative if they did not.

    That is from the first step of an attempt to the last step of those before, by the clock that all
    hosts share. -inf if there were not two attempts.
    """
    steps: dict[int, list[float]] = {}
    for file in folder.glob("steps-*"):
        times = [float(line) for line in file.read_text().splitlines()]
        steps.setdefault(int(file.name.split("-")[1]), []).extend(times)
    longest = latest = -math.inf
    for _, times in sorted(steps.items()):
        longest = max(longest, latest - min(times, default=math.inf))
        latest = max([latest, *times])
    return longest
