"""Run launchers in turn, so that other load on the machine affects all of them alike."""

import compileall
import ctypes
import math
import os
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import clusterrun
import psutil
from free_ports import free_port

Measured = tuple[float, ...]
"""The figures of one run; ``math.inf`` if it failed or did not end in time."""

OURS = "clusterrun"
THEIRS = "torchrun"

MPIRUN = "mpirun"
"""Measured only if it is installed."""

SECONDS_TO_END = 300.0
"""The limit of one run; a busy machine needs a small part of it."""

SHOWN_OF_OUTPUT = 2000
"""Bytes of a job's output that are shown if it could not be measured."""

PR_SET_CHILD_SUBREAPER = 36


def parser(description: str, nproc: int) -> ArgumentParser:
    """Return a parser with the options of all benchmarks; ``nproc`` is the default of --nproc."""
    arguments = ArgumentParser(description=description)
    arguments.add_argument("--runs", type=int, default=5, help="of each; the median counts")
    arguments.add_argument("--nproc", type=int, default=nproc, help="ranks")
    return arguments


def command(name: str, nproc: int, *words: str | Path) -> list[str]:
    """Return the command with which a launcher runs ``[OPTION...] SCRIPT [ARGUMENT...]``.

    clusterrun and torchrun are taken from the folder of this interpreter.
    """
    if name == MPIRUN:
        # mpirun sets other variables than torch reads, and no address.
        as_torch = "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
        address = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()}"
        run = ["sh", "-c", f'{as_torch} {address} exec "$@"', "sh", sys.executable]
        return [
            MPIRUN,
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            f"{nproc}",
            *run,
            *map(str, words),
        ]
    # torchrun always uses 29500, which may be in use.
    port = [] if name == OURS else [f"--master-port={free_port()}"]
    beside = Path(sys.executable).with_name(name)
    return [str(beside), f"--nproc-per-node={nproc}", *port, *map(str, words)]


def is_installed(name: str) -> bool:
    """Return whether this command is on PATH."""
    return shutil.which(name) is not None


def exit_on_sigterm() -> None:
    """Let SIGTERM end this process by ``SystemExit``, so that it ends what it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def medians(
    runs: int, measures: Mapping[str, Callable[[], Measured]], *, warm_up: bool = True
) -> dict[str, Measured]:
    """Call each of ``measures`` ``runs`` times, in turn; return the medians of their figures.

    If clusterrun fails, the benchmark ends; other launchers may fail.

    Args:
        runs: the number of runs of each that count.
        measures: functions that do one run.
        warm_up: do one more run of each first, which may read from the disk and does not count.

    """
    exit_on_sigterm()
    # pip compiles an installed package; here Python may not be allowed to write.
    compileall.compile_dir(Path(clusterrun.__file__).parent, quiet=2)
    shown: dict[str, list[Measured]] = {name: [] for name in measures}
    for _ in range(runs + warm_up):
        for name, measure in measures.items():
            shown[name].append(measure())
            if name == OURS and math.inf in shown[name][-1]:
                sys.exit(f"{OURS} could not be measured")
    return {
        name: tuple(statistics.median(column) for column in zip(*all_runs[warm_up:], strict=True))
        for name, all_runs in shown.items()
    }


def launch_time(name: str, nproc: int, *words: str | Path) -> Measured:
    """Return the seconds from the start of a launcher to its end."""
    return (run_time(command(name, nproc, *words)),)


def run_time(words: Sequence[str], stdout: IO[bytes] | None = None) -> float:
    """Return the seconds that a command takes; ``math.inf`` if it fails or does not end in time."""
    start = time.perf_counter()
    with started(words, stdout) as job:
        code = job.exit_code(SECONDS_TO_END)
        taken = time.perf_counter() - start
        if code == 0:
            return taken
        job.complain("did not end" if code is None else f"ended with {code}")
    return math.inf


class Job:
    """A running command and its output."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", words: Sequence[str], output: IO[bytes]
    ) -> None:
        """Take a process, its command line, and the file with its output."""
        self.process = process
        self._words = words
        self._output = output

    def exit_code(self, within: float) -> int | None:
        """Return its exit code; None if it still runs after ``within`` seconds."""
        # ``Popen.wait`` with a limit looks every 50 ms: a third of the time of a short launch.
        last_end([self.process.pid], within)
        return self.process.poll()

    def complain(self, what: str) -> None:
        """Print why it can't be measured, and the end of its output."""
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - SHOWN_OF_OUTPUT))
        printed = self._output.read().decode(errors="replace")
        print(f"{printed}\n{shlex.join(self._words)}: {what}", file=sys.stderr)


def last_end(pids: Sequence[int], seconds: float) -> float:
    """Return when the last of these has ended; ``math.inf`` if one runs after ``seconds``."""
    waiting = {os.pidfd_open(pid) for pid in pids}
    deadline = time.monotonic() + seconds
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, deadline - time.monotonic()))
        for descriptor in ready or waiting:
            os.close(descriptor)
        if not ready:
            return math.inf
        waiting -= set(ready)
    return time.monotonic()


@contextmanager
def started(words: Sequence[str], stdout: IO[bytes] | None = None) -> Iterator[Job]:
    """Start a command; at the end kill it and all its descendants.

    Args:
        words: the command.
        stdout: a file for its standard output, if the caller reads that.

    """
    adopt_orphans()
    # torchrun sets it to 1 with a warning; so all launchers have the same.
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout or output,
            stderr=output,
        ) as process,
    ):
        try:
            yield Job(process, words, output)
        finally:
            end_descendants()


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that all of them can be found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill all descendants of this process until none is left."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (living := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in living:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(living, timeout=SECONDS_TO_END / 10)


def written(folder: Path, pattern: str) -> dict[str, str]:
    """Return the texts of the files that match ``pattern``, by name, without empty ones."""
    texts = {path.name: path.read_text() for path in folder.glob(pattern)}
    return {name: text for name, text in texts.items() if text}


def written_by_all(
    folder: Path, pattern: str, nproc: int, within: float, job: Job
) -> dict[str, str]:
    """Wait until ``nproc`` files match ``pattern``, or time or the job ends; return their texts."""
    deadline = time.monotonic() + within
    while len(written(folder, pattern)) < nproc and time.monotonic() < deadline:
        if job.exit_code(within=0.05) is not None:
            break
    return written(folder, pattern)


def proportional_megabytes(process: psutil.Process) -> float:
    """Return a process's memory in MB; a page shared by n processes counts 1/n (PSS)."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1000
    return 0.0


def row(what: str, ours: float, theirs: float, *, unit: str = "s", digits: int = 2) -> str:
    """Return a row of a Markdown table: two medians, and the second divided by the first."""
    times = f"{theirs / ours:.1f} times" if ours > 0 and math.isfinite(theirs) else "-"
    cells = [what, shown(ours, unit, digits), shown(theirs, unit, digits), times]
    return f"| {' | '.join(cells)} |"


def shown(value: float, unit: str, digits: int) -> str:
    """Return a number with its unit."""
    return f"{value:.{digits}f} {unit}" if math.isfinite(value) else "fails"
