"""One job on several hosts: the same command on each of them, and what every one of them tells."""

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import dedent

from tests.contract.launched import SECONDS_TO_ACT, Ended, Job, Launcher
from tests.hosts.host import Host

PROGRESS = re.compile(r"clusterrun: .*\(.*\d+ s of \d+ s\)\n")
"""Lines that only a slow machine, or a test that waits for them, gets to see."""


class Nodes:
    """Starts ``clusterrun OPTIONS train.py`` on hosts, train.py being the same file on all."""

    def __init__(self, launcher: Launcher, hosts: Sequence[Host], script: str) -> None:
        """Take where the nodes run, and the script's text, indented as suits the test."""
        self._launcher = launcher
        self._hosts = hosts
        self._script = launcher.folder / "train.py"
        self._script.write_text(dedent(script))

    def start(
        self,
        number: int,
        *options: str,
        workers: int = 1,
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Job:
        """Start the command on the host with this number, by another one ``before`` it if need be."""
        words = (*options, str(self._script), *args)
        around = (*self._hosts[number].around, *before)
        return self._launcher.command(*words, workers=workers, around=around, environ=environ)

    def start_all(
        self,
        *options: str,
        workers: Sequence[int] = (1, 1),
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> list[Job]:
        """Start a node with so many workers on each of the first hosts, the first being node 0."""
        address = self._hosts[0].address
        place = ("--nnodes", str(len(workers)), "--master-addr", address, *options)
        return [
            self.start(
                rank, *place, "--node-rank", str(rank), workers=count, args=args, environ=environ
            )
            for rank, count in enumerate(workers)
        ]


def ended(jobs: Iterable[Job], seconds: float = SECONDS_TO_ACT) -> list[Ended]:
    """Wait for the ends of all; return them without what they told of their progress."""
    ends = [job.ended(seconds) for job in jobs]
    return [end._replace(err=PROGRESS.sub("", end.err)) for end in ends]


def codes(ends: Iterable[Ended]) -> list[int]:
    """Return the exit codes."""
    return [end.code for end in ends]
