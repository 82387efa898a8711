"""``clusterrun bench SCRIPT``: how much faster more ranks, or other options, make a script."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from clusterrun.benchmarking.results import Done, Reading, benchmark_of, write_picture, write_table
from clusterrun.benchmarking.runs import Run, perform
from clusterrun.cli.benchmark_plan import plan_runs
from clusterrun.cli.json_printing import print_json
from clusterrun.cli.printing import complain, print_text
from clusterrun.clients.launches import ChildLaunches
from clusterrun.errors import ExitCode, MachineError
from clusterrun.job.options import Files, Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.report.throughput import throughput_table

USUAL_FOLDER = "clusterrun-bench"

UNCLEAR = 1
"""The exit code if all runs ended well, and the output of one has no throughput."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Run the script at all sizes, and print the table; return the first exit code that is not 0.

    A signal ends the run that goes on, and the table has those before it.

    Raises:
        UsageError: a run is impossible; none has been started.
        MachineError: the folder can't be written.

    """
    runs, reading = plan_runs(line, environ, called)
    folder = Path(line.read(Files).log_dir or USUAL_FOLDER)
    with ChildLaunches(environ) as launches:
        done = _perform_all(runs, folder, launches)
        code = _show(done, folder, reading, as_json=line.read(Launcher).json) if done else 0
    return launches.interrupted or code


def _perform_all(runs: Sequence[Run], folder: Path, launches: ChildLaunches) -> list[Done]:
    """Return the runs that have ended by themselves."""
    done: list[Done] = []
    for number, run in enumerate(runs, 1):
        complain(f"clusterrun: run {number} of {len(runs)}: {_described(run)}")
        with _written_in(folder):
            code = perform(run, folder, launches)
        if launches.interrupted:
            complain(f"clusterrun: interrupted: {len(done)} of {len(runs)} runs are measured")
            break
        done.append(Done(run, code))
    return done


def _show(done: Sequence[Done], folder: Path, reading: Reading, *, as_json: bool) -> int:
    benchmark = benchmark_of(done, folder, reading)
    with _written_in(folder):
        write_table(benchmark, folder)
    if as_json:
        print_json(benchmark)
    else:
        print_text(throughput_table(benchmark))
    with _written_in(folder):
        pictured = write_picture(benchmark, folder)
    if not as_json:
        print_text(f"\n{pictured}")
    unclear = UNCLEAR if any(row.fault for row in benchmark.rows) else ExitCode.SUCCESS
    return next((each.code for each in done if each.code), unclear)


@contextmanager
def _written_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{folder} can't be written: {error.strerror}", "give another one with --log-dir DIR"
        ) from None


def _described(run: Run) -> str:
    ranks = f"{run.size.ranks} rank{'s' if run.size.ranks > 1 else ''}"
    where = f" on {run.size.nodes} nodes" if run.size.nodes > 1 else ""
    return f"{run.variant.name}, {ranks}{where}"
