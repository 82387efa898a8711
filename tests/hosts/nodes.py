"""One job on several hosts: starts the same command on each and collects the ends."""

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import dedent

from tests.contract.launched import Ended, Job, Launcher
from tests.hosts.host import Host
from tests.waiting import SECONDS_TO_ACT

PROGRESS = re.compile(r"clusterrun: .*\(.*\d+ s of \d+ s\)\n")
"""Lines that appear only on a slow machine, or in a test that waits for them."""


class Nodes:
    """Starts ``clusterrun OPTIONS train.py`` on hosts, with the same train.py on all."""

    def __init__(self, launcher: Launcher, hosts: Sequence[Host], script: str) -> None:
        """Write ``script``, which may be indented, as train.py."""
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
        """Start the command on the host with this number, with the words ``before`` in front of it."""
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
        """Start a node on each of the first hosts, with these numbers of workers."""
        address = self._hosts[0].address
        place = ("--nnodes", str(len(workers)), "--master-addr", address, *options)
        return [
            self.start(
                rank, *place, "--node-rank", str(rank), workers=count, args=args, environ=environ
            )
            for rank, count in enumerate(workers)
        ]


def ended(jobs: Iterable[Job], seconds: float = SECONDS_TO_ACT) -> list[Ended]:
    """Wait for the ends of all; return them without notices of progress."""
    ends = [job.ended(seconds) for job in jobs]
    return [end._replace(err=PROGRESS.sub("", end.err)) for end in ends]


def codes(ends: Iterable[Ended]) -> list[int]:
    return [end.code for end in ends]
