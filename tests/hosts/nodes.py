"""One job on several hosts: starts the same command on each and collects the results."""

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
        """Start the command on the host of this number, as an argument of the command ``before``."""
        words = (*options, str(self._script), *args)
        around = (*self._hosts[number].around, *before)
        return self._launcher.command(*words, workers=workers, around=around, environ=environ)

    def join(
        self,
        rank: int,
        *options: str,
        workers: int = 1,
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Job:
        """Start a node with this rank on the host of this number; node 0 is the first host."""
        node = ("--master-addr", self._hosts[0].address, "--node-rank", str(rank))
        return self.start(
            rank, *node, *options, workers=workers, args=args, environ=environ, before=before
        )

    def start_all(
        self,
        *options: str,
        workers: Sequence[int] = (1, 1),
        args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> list[Job]:
        """Start a node on each of the first hosts, with these numbers of workers."""
        nnodes = ("--nnodes", str(len(workers)))
        return [
            self.join(rank, *nnodes, *options, workers=count, args=args, environ=environ)
            for rank, count in enumerate(workers)
        ]


def ended(jobs: Iterable[Job], seconds: float = SECONDS_TO_ACT) -> list[Ended]:
    """Wait until all jobs have ended; return their results without notices of progress."""
    ends = [job.ended(seconds) for job in jobs]
    return [end._replace(err=PROGRESS.sub("", end.err)) for end in ends]


def codes(ends: Iterable[Ended]) -> list[int]:
    return [end.code for end in ends]


def nothing_is_left(hosts: Sequence[Host], jobs: Sequence[Job]) -> None:
    """Check that no process of the job, grandchildren included, is left on any host."""
    assert [job.left() for job in jobs] == [[]] * len(jobs)
    assert [host.processes() for host in hosts] == [[]] * len(hosts)


def outputs(cause: object, ends: Iterable[Ended]) -> str:
    """Return what happened to a job and the output of all its nodes, for a failed assertion."""
    return f"{cause}\n" + "\n".join(f"--- node {i}: {end}" for i, end in enumerate(ends))
