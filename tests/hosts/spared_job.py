"""A job with a spare, whose ranks tell their places and wait."""

from tests.contract.launched import Job, Launcher
from tests.contract.worker_scripts import RANKS_RENDEZVOUS
from tests.hosts.host import Host
from tests.hosts.nodes import Nodes

STEPS_UNTIL_TOLD = f"""
    import os, pathlib, sys, time
    names = ("RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT")
    place = " ".join(os.environ[name] for name in names)
{RANKS_RENDEZVOUS}
    print("place", place, os.uname().nodename, flush=True)
    while not pathlib.Path("enough").exists():
        time.sleep(0.02)
"""
"""All ranks meet at MASTER_PORT, then wait for a file."""


class SparedJob:
    """A job of three hosts, of which two work and one waits."""

    def __init__(self, hosts: tuple[Host, ...], launcher: Launcher) -> None:
        self.hosts = hosts
        self.folder = launcher.folder
        self._nodes = Nodes(launcher, hosts, STEPS_UNTIL_TOLD)
        self.options = ("--nnodes", "2", "--spares", "1", "--master-addr", hosts[0].address)

    def start(self, *options: str) -> list[Job]:
        """Start all three, and wait until the two work."""
        jobs = [self.join(rank, *options) for rank in range(3)]
        for rank in (0, 1):
            jobs[rank].wait_for(f"place {rank} 2 {rank} 0 n{rank}")
        jobs[2].wait_for("this node is a spare")
        return jobs

    def join(self, rank: int, *options: str) -> Job:
        """Start an agent on the host of this number."""
        return self._nodes.start(rank, *self.options, "--node-rank", str(rank), *options)

    def let_all_end(self) -> None:
        """Let the workers exit with 0."""
        (self.folder / "enough").touch()
