"""The runs of a benchmark: one job each, with its output in a file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
from clusterrun.job.clusters.slurm import Allocation
from clusterrun.job.sources import CommandLine, typed

OUTPUT = "output.txt"
"""In the folder of a run: what all of its ranks and agents print."""


class Variant(Struct, frozen=True):
    """One way to run the script."""

    name: str
    line: CommandLine


class Size(Struct, frozen=True):
    """How many workers."""

    nodes: int
    nproc: int
    """On each node."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.nproc


class Run(Struct, frozen=True):
    """One job."""

    variant: Variant
    size: Size
    number: int
    """Of the round, from 1."""
    hosts: tuple[str, ...]
    """The hosts that ssh reaches; () without ssh."""
    allocation: Allocation | None
    """That of Slurm in which srun starts it; None without srun."""

    @property
    def place(self) -> Path:
        """Its folder, below that of the benchmark."""
        size = f"{self.size.nodes}-nodes-{self.size.nproc}-workers"
        return Path(self.variant.name) / size / f"round-{self.number}"

    def line(self, folder: Path) -> CommandLine:
        """Return its command line, with log files in its folder below ``folder``."""
        given = self.variant.line
        line = given.over(
            typed(nproc_per_node=str(self.size.nproc), log_dir=str(folder / self.place))
        )
        if self.hosts:
            hosts = ",".join(self.hosts[: self.size.nodes])
            return line.without({"hostfile"}).over(typed(hosts=hosts))
        return line.over(typed(nnodes="1")) if self.allocation is None else line

    def argv(self, folder: Path) -> list[str]:
        """Return the words that start it."""
        srun = self.allocation.srun(self.size.nodes) if self.allocation else ()
        return [*srun, *CLUSTERRUN, *self.line(folder).argv()]


def all_runs(
    variants: Sequence[Variant],
    sizes: Sequence[Size],
    rounds: int,
    hosts: tuple[str, ...],
    allocation: Allocation | None,
) -> Iterator[Run]:
    """Yield the runs: variants take turns, so that what changes with time hits all of them."""
    for number in range(1, rounds + 1):
        for size in sizes:
            for variant in variants:
                yield Run(variant, size, number, hosts, allocation)


def perform(run: Run, folder: Path, launches: ChildLaunches) -> int:
    """Run it to its end; return its exit code.

    Raises:
        OSError: its folder can't be written.

    """
    place = folder / run.place
    place.mkdir(parents=True, exist_ok=True)
    with (place / OUTPUT).open("wb") as file:
        return launches.run(run.argv(folder), file)[0]


def printed_by(run: Run, folder: Path) -> str:
    return (folder / run.place / OUTPUT).read_text(errors="replace")
