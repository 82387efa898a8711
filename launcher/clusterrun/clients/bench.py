"""``clusterrun bench SCRIPT``: measure a script's throughput by number of ranks and by options.

Each run launches one variant at one size. Its output goes to a file, from which its throughput is read.
"""

import io
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from math import isfinite
from pathlib import Path
from shutil import which
from statistics import median, quantiles
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.cli.printing import complain, json_text, print_text
from clusterrun.cli.splitting import split
from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
from clusterrun.errors import ExitCode, MachineError, UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.clusters.slurm import current_allocation
from clusterrun.job.declarations import Option, Value
from clusterrun.job.options import Files, Launcher
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.this_process import ThisProcess, this_process
from clusterrun.job.values import WorkerCount, number, whole_number
from clusterrun.report.tables import EMPTY, aligned
from clusterrun.run.node import LocalNode, MachineSource

OUTPUT = "output.txt"

STARTING_NODES = """\
bench starts other nodes by ssh:
  clusterrun bench --launcher ssh --hosts a,b ...
or by srun, in a batch script or salloc shell; do not put srun before it"""

RESERVED = ("nproc_per_node", "log_line_prefix_template", "ranks", "local_ranks_filter", "pdb")
"""Options that bench sets for each run, or that change the output that it reads."""


class Variant(NamedTuple):
    """The value of ``--variant``: ``NAME: OPTIONS -- ARGUMENTS``."""

    name: str
    options: tuple[str, ...]
    args: tuple[str, ...]


def _counts(text: str) -> tuple[int, ...]:
    """Parse positive numbers separated by commas, without duplicates."""
    found = [whole_number(part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"{text!r} is not a list of numbers from 1", "give one such as 1,2,4,8")
    return tuple(dict.fromkeys(filter(None, found)))


def _variant(text: str) -> Variant:
    """Parse ``--variant``; the name is also used for a folder."""
    name, _, rest = text.partition(":")
    if ":" not in text or not re.fullmatch(r"[\w.+-]*[\w+-][\w.+-]*", name):
        raise UsageError(
            f"{text!r} does not begin with a name (letters, digits, _, ., + and -) and a colon",
            "give a name and options: 'unbound: --numa-binding none'",
        )
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", "close the quotes") from None
    at = words.index("--") if "--" in words else len(words)
    return Variant(name, tuple(words[:at]), tuple(words[at + 1 :]))


def _pattern(text: str) -> re.Pattern[str]:
    with suppress(re.error):
        found = re.compile(text)
        if found.groups:
            return found
    raise UsageError(
        f"{text!r} is not a regular expression with a group for the number",
        r"give one whose first group is the number: 'speed=([\d.]+)'",
    )


class BenchOptions(Struct, frozen=True):
    """The options that only ``clusterrun bench`` has."""

    title: ClassVar = "What clusterrun bench runs and reads"

    nproc: Annotated[
        tuple[int, ...],
        Value(_counts, "N,..."),
        Option(
            "Numbers of workers on each node, such as 1,2,4,8; each is a run",
            default="1, then twice as many up to all visible GPUs",
        ),
    ] = ()
    variant: Annotated[
        tuple[Variant, ...],
        Value(_variant, "'NAME: OPTIONS'", repeated=True),
        Option(
            "Also run all sizes with these options; put arguments for the script after --; may be"
            " repeated",
            default="one, without options of its own",
        ),
    ] = ()
    metric: Annotated[
        re.Pattern[str] | None,
        Value(_pattern, "REGEX"),
        Option(
            "How the script prints its throughput; the first group is the number",
            default="common forms, such as 512 images/s",
        ),
    ] = None
    warm_up: Annotated[
        int | None,
        number("a number from 0", hint="give one such as 3"),
        Option(
            "How many throughput values to skip at the start of each run",
            default="a fifth, at least one",
        ),
    ] = None
    rounds: Annotated[
        int,
        number("a number from 1", 1, hint="give one such as 3"),
        Option("How many times to run each variant at each size; variants alternate"),
    ] = 1


class Case(NamedTuple):
    """A variant at one size, which is a row of the table."""

    variant: str
    nodes: int
    nproc: int

    @property
    def ranks(self) -> int:
        return self.nodes * self.nproc

    def __str__(self) -> str:
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.variant}, {counted(self.ranks, 'rank')}{where}"


class Run(NamedTuple):
    """One launch of a case."""

    case: Case
    folder: Path
    """For log files and ``output.txt``, which gets what ranks and agents print."""
    argv: tuple[str, ...]


class Measurement(Struct, frozen=True):
    """A row of the table, and a point of the plot."""

    variant: str
    nodes: int
    ranks: int
    values: tuple[float, ...]
    """Throughput values of all rounds, without warm-up."""
    throughput: float | None = None
    """The median of the values, per second. This and the next three are None without a value."""
    spread: float | None = None
    """Half the interquartile range of the values, divided by the median."""
    speed_up: float | None = None
    """Throughput divided by that of the first variant at its smallest size."""
    efficiency: float | None = None
    """Throughput per rank, divided by that of the same variant at its smallest size."""
    fault: str = ""
    """Why a run has no throughput, such as ``exit code 1``."""


class Benchmark(Struct, frozen=True):
    """What ``clusterrun bench --json`` prints."""

    unit: str
    """For example ``images/s``."""
    rows: tuple[Measurement, ...]
    folder: str
    """The folder of the outputs, the results and the plots."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Run the script at all sizes, and print the table; return the first non-zero exit code.

    A signal ends the current run; the table then has the runs before it.

    Raises:
        UsageError: the options of a run are impossible; no run has been started.
        MachineError: the folder can't be written.

    """
    _check_not_reserved(line, RESERVED, "")
    options = line.read(BenchOptions)
    folder = Path(line.read(Files).log_dir or "clusterrun-bench")
    runs = planned_runs(line, options, folder, environ, called)
    ended: list[tuple[Run, int]] = []
    with ChildLaunches(environ) as launches:
        for at, run in enumerate(runs, 1):
            complain(f"clusterrun: run {at} of {len(runs)}: {run.case}")
            with _folder_errors(folder):
                run.folder.mkdir(parents=True, exist_ok=True)
                with (run.folder / OUTPUT).open("wb") as file:
                    code, _ = launches.run(run.argv, file)
            if launches.interrupted:
                complain(f"clusterrun: interrupted: {len(ended)} of {len(runs)} runs are measured")
                break
            ended.append((run, code))
        if not ended:
            return launches.interrupted
        benchmark = read_outputs(ended, options, folder)
        _show(benchmark, folder, as_json=line.read(Launcher).json)
        faulty = [row for row in benchmark.rows if row.fault]
        code = launches.interrupted or next((code for _, code in ended if code), len(faulty) and 1)
        if faulty:
            names = "; ".join(
                str(Case(row.variant, row.nodes, row.ranks // row.nodes)) for row in faulty
            )
            complain(f"clusterrun: exit code {code}: runs without a throughput: {names}")
        return code or ExitCode.SUCCESS


# The runs.


def planned_runs(
    line: CommandLine, options: BenchOptions, folder: Path, environ: Mapping[str, str], called: str
) -> list[Run]:
    """Return the runs. Variants alternate, so a drift over time affects all of them.

    Raises:
        UsageError: the options of a run are impossible.

    """
    job = line.without({*BenchOptions.__struct_fields__, "json", "log_dir", "nnodes"})
    variants = _command_lines(job, options.variant, called)
    process, allocation = this_process(called), None
    if _may_use_slurm(job, environ):
        allocation = current_allocation(Variables(environ), process)
    # Without srun, a batch script runs on the first node only.
    given = resolve(job.with_options(typed(nnodes="1")) if allocation else job, environ, process)
    if given.over_ssh is None and given.job.agents > 1:
        raise UsageError(
            f"bench starts the other nodes itself, but was started as one of {given.job.agents}"
            f" processes on this node ({given.job.origin('nnodes')})",
            STARTING_NODES,
        )
    hosts = given.over_ssh.hosts if given.over_ssh else ()
    local = [each if hosts else each.with_options(typed(nnodes="1")) for each in variants.values()]
    nproc = options.nproc or _usual_sizes(
        local, environ, process, elsewhere=bool(hosts or allocation)
    )
    sizes = _sizes(line, nproc, len(hosts) or (allocation.nodes if allocation else 1))
    runs = []
    for at, (nodes, workers), name in product(range(1, options.rounds + 1), sizes, variants):
        own = folder / name / f"{nodes}-nodes-{workers}-workers" / f"round-{at}"
        run = variants[name].with_options(typed(nproc_per_node=str(workers), log_dir=str(own)))
        if hosts:
            run = run.without({"hostfile"}).with_options(typed(hosts=",".join(hosts[:nodes])))
        else:
            run = run.with_options(typed(nnodes="1"))
        resolve(run, environ, process)
        srun: tuple[str, ...] = ()
        if allocation is not None:
            # Each agent takes the number of nodes from its job step.
            run, srun = run.without({"nnodes"}), allocation.srun(nodes)
        runs.append(Run(Case(name, nodes, workers), own, (*srun, *CLUSTERRUN, *run.argv())))
    return runs


def _may_use_slurm(job: CommandLine, environ: Mapping[str, str]) -> bool:
    """Return whether srun is installed, and no option chooses another way to start nodes."""
    clusters = [text.value for text in job.options.get("cluster", ())]
    if clusters[-1:] not in ([], ["slurm"]) or "launcher" in job.options:
        return False
    return which("srun", path=environ.get("PATH")) is not None


def _command_lines(
    job: CommandLine, variants: Sequence[Variant], called: str
) -> dict[str, CommandLine]:
    """Return the command line of each variant by name; without variants, that of the job."""
    lines: dict[str, CommandLine] = {}
    for name, options, args in variants:
        where = f"--variant {name}: "
        try:
            found = split(options, called, takes_script=False)
        except UsageError as error:
            hint = error.hint or f"put -- before arguments of the script: '{name}: -- ...'"
            raise UsageError(f"{where}{error.message}", hint) from None
        _check_not_reserved(found, (*RESERVED, "nnodes", "log_dir"), where)
        if found.words:
            raise UsageError(
                f"{where}{found.words[0]} is not an option",
                f"put -- before arguments of the script: '{name}: -- {' '.join(found.words)}'",
            )
        if name in lines:
            raise UsageError(f"--variant: two variants are called {name}", "rename one of them")
        lines[name] = CommandLine(job.with_options(found.options).options, (*job.words, *args))
    return lines or {"script": job}


def _check_not_reserved(line: CommandLine, reserved: Sequence[str], where: str) -> None:
    for name in reserved:
        if name in line.options:
            raise UsageError(
                f"{where}{line.options[name][-1].origin}: can't be used in a bench run",
                "remove it; --nproc 1,2,4, --nnodes 1,2 and --log-dir DIR go before the script",
            )


def _usual_sizes(
    runs: Iterable[CommandLine],
    environ: Mapping[str, str],
    process: ThisProcess,
    *,
    elsewhere: bool,
) -> tuple[int, ...]:
    """Return 1, 2, 4 ... up to as many workers as this machine has GPUs for in each run.

    With ``elsewhere``, the runs are on other machines, which may have GPUs that this one lacks.

    Raises:
        UsageError: the options of a run name GPUs that this machine lacks.

    """
    most = []
    for run in runs:
        given = resolve(run, environ, process)
        workers = replace(given.job.workers, nproc_per_node=WorkerCount.PER_GPU)
        given = replace(given, job=replace(given.job, workers=workers))
        try:
            most.append(LocalNode.of(given, MachineSource.here(environ)).workers)
        except UsageError as error:
            if not elsewhere:
                hint = error.hint.replace("--nproc-per-node", "--nproc")
                raise UsageError(error.message, hint) from None
            most.append(1)
    least = min(most)
    return tuple({*(1 << power for power in range(least.bit_length())), least})


def _sizes(line: CommandLine, nproc: Sequence[int], max_nodes: int) -> list[tuple[int, int]]:
    """Return numbers of nodes and of workers per node, sorted by the number of ranks."""
    nodes: tuple[int, ...] = (max_nodes,)
    if "nnodes" in line.options:
        try:
            nodes = _counts(line.options["nnodes"][-1].value)
        except UsageError as error:
            raise UsageError(f"--nnodes: {error.message}", error.hint) from None
    if max(nodes) > max_nodes:
        there = "is 1" if max_nodes == 1 else f"are {max_nodes}"
        raise UsageError(
            f"--nnodes: {max(nodes)} nodes need as many hosts, but there {there}", STARTING_NODES
        )
    return sorted(product(nodes, nproc), key=lambda size: (size[0] * size[1], size[0]))


# The output of the runs.

_NO_COUNTER = r"(?<![\d.,_])(?<!epoch )(?<!step )(?<!iter )(?<!iteration )(?<!batch )(?<!rank )"
"""Goes before a number: in "step 10 tokens/s: 512", 10 is not the throughput."""
_NO_LABEL = r"(?![\"']?\s*[:=]\s*\d)"
"""Goes after a unit, and excludes a label whose number follows."""
_NUMBER = r"(?P<number>\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_PER_SECOND = r"(?:\s*/\s*|[ _]per[ _])(?:seconds?|secs?|s)\b"
_WORK = r"(?P<unit>samples?|examples?|images?|imgs?|frames?|tokens?|toks?|sequences?|seqs?)"
_STEPS = r"(?P<unit>steps?|iterations?|iters?|its?|batch(?:es)?)"

COMMON_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"{_NO_COUNTER}{_NUMBER} ?(?P<factor>[kM]?) ?{_WORK}{_PER_SECOND}{_NO_LABEL}",
        rf"{_WORK}{_PER_SECOND}[\"']?\s*[:=]?\s*{_NUMBER}",
        rf"(?P<unit>throughput)(?:[^\d\n]{{0,24}}[:=])?\s*{_NUMBER}",
        rf"{_NO_COUNTER}{_NUMBER} ?(?P<factor>[kM]?) ?{_STEPS}{_PER_SECOND}{_NO_LABEL}",
        rf"{_STEPS}{_PER_SECOND}[\"']?\s*[:=]?\s*{_NUMBER}",
        rf"(?P<seconds>\d+(?:\.\d+)?) ?(?:s|sec|seconds?) ?(?:/|per) ?{_STEPS}\b",
    )
)
"""``512 images/s``, ``'train_samples_per_second': 81.2``, ``throughput: 9``, ``12.5it/s``,
``2.1s/it``. Samples per second come before steps per second: with more ranks, a step may do more work."""

_RANK = re.compile(r"\[rank (\d+)[^\]]*\] ?")
"""The prefix of a line; the lines of a single worker have no prefix."""


def read_outputs(
    ended: Sequence[tuple[Run, int]], options: BenchOptions, folder: Path
) -> Benchmark:
    """Return the results of runs that have ended with these exit codes."""
    texts = [(run.folder / OUTPUT).read_text(errors="replace") for run, _ in ended]
    succeeded = [text for text, (_, code) in zip(texts, ended, strict=True) if code == 0]
    pattern = options.metric or find_pattern(succeeded)
    values: dict[Case, list[float]] = {}
    faults: dict[Case, str] = {}
    for text, (run, code) in zip(texts, ended, strict=True):
        found = values_in(text, pattern) if pattern and code == 0 else []
        measured = without_warm_up(found, options.warm_up)
        values.setdefault(run.case, []).extend(measured)
        fault = f"exit code {code}" if code else ""
        if not found:
            fault = fault or "no throughput found: give --metric REGEX"
        elif median(measured) <= 0:
            fault = f"the throughput is {median(measured):g}"
        if fault:
            faults.setdefault(run.case, f"{fault}; see {run.folder}")
    return Benchmark(unit_in(succeeded, pattern), compare(values, faults), str(folder))


def find_pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Return the first of ``COMMON_PATTERNS`` that matches in any output."""
    return next((each for each in COMMON_PATTERNS if any(map(each.search, texts))), None)


def unit_in(texts: Sequence[str], pattern: re.Pattern[str] | None) -> str:
    """Return the unit, such as ``images/s``; ``per second`` if the pattern has no unit."""
    found = next(filter(None, map(pattern.search, texts)), None) if pattern else None
    unit = found.groupdict().get("unit") if found else None
    return f"{unit}/s" if unit and unit.lower() != "throughput" else "per second"


def values_in(text: str, pattern: re.Pattern[str]) -> list[float]:
    """Return the throughput values in one run's output, in order.

    If several ranks print values, those of the lowest rank are returned: whether a rank prints its own
    throughput or that of the job, values of several ranks must not be mixed.
    """
    by_rank: dict[int, list[float]] = {}
    for line in re.split(r"[\n\r]", text):
        prefix = _RANK.match(line)
        for found in pattern.finditer(line, prefix.end() if prefix else 0):
            # The group of a user's pattern may be unmatched, or match something else than a number.
            with suppress(ValueError, ZeroDivisionError):
                value = _throughput(found, has_groups=pattern in COMMON_PATTERNS)
                if isfinite(value):
                    by_rank.setdefault(int(prefix[1]) if prefix else 0, []).append(value)
    return by_rank[min(by_rank)] if by_rank else []


def _throughput(found: re.Match[str], *, has_groups: bool) -> float:
    groups = found.groupdict() if has_groups else {"number": found[1]}
    if seconds := groups.get("seconds"):
        return 1 / float(seconds)
    factor = {"": 1.0, "k": 1e3, "m": 1e6}[(groups.get("factor") or "").lower()]
    return float((groups["number"] or "").replace(",", "").replace("_", "")) * factor


def without_warm_up(values: Sequence[float], warm_up: int | None) -> tuple[float, ...]:
    """Return the values after the first ``warm_up``, but at least the last value.

    By default, a fifth of the values and at least one are skipped.
    """
    skipped = max(1, len(values) // 5) if warm_up is None else warm_up
    return tuple(values[min(skipped, len(values) - 1) :]) if values else ()


def compare(
    values: Mapping[Case, Sequence[float]], faults: Mapping[Case, str]
) -> tuple[Measurement, ...]:
    """Return a row for each case, in the same order.

    Args:
        values: the throughput values of each case, without warm-up.
        faults: why values are missing.

    """
    medians = {case: median(found) for case, found in values.items() if found}
    speeds = {case: speed for case, speed in medians.items() if speed > 0}
    bases: dict[str, Case] = {}
    for case in sorted(speeds, key=lambda case: case.ranks):
        bases.setdefault(case.variant, case)
    # The first variant with a throughput has speed-up 1 at its smallest size.
    first = next((speeds[bases[case.variant]] for case in values if case.variant in bases), 1.0)

    def row(case: Case, found: Sequence[float]) -> Measurement:
        row = Measurement(
            case.variant, case.nodes, case.ranks, tuple(found), fault=faults.get(case, "")
        )
        if case not in speeds:
            return row
        speed, base = speeds[case], bases[case.variant]
        return replace(
            row,
            throughput=speed,
            spread=_spread(found) / speed,
            speed_up=speed / first,
            efficiency=(speed / case.ranks) / (speeds[base] / base.ranks),
        )

    return tuple(row(case, found) for case, found in values.items())


def _spread(values: Sequence[float]) -> float:
    """Return half the interquartile range; with fewer than four values, half the whole range."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = quantiles(values, n=4)
    return (high - low) / 2


# The table and the plot.


@contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{folder} can't be written: {error.strerror}", "give another one with --log-dir DIR"
        ) from None


def _show(benchmark: Benchmark, folder: Path, *, as_json: bool) -> None:
    """Write and print the results, and write the plot."""
    with _folder_errors(folder):
        (folder / "results.json").write_text(json_text(benchmark))
    print_text(json_text(benchmark) if as_json else table(benchmark))
    with _folder_errors(folder):
        plotted = _write_plot(benchmark, folder)
    if not as_json:
        print_text(f"\n{plotted}")


def table(benchmark: Benchmark) -> str:
    """Return the rows, without a trailing newline."""
    heads = ("variant", "nodes", "ranks", benchmark.unit, "spread", "speed-up", "efficiency", "")
    return "\n".join(aligned([heads, *map(_cells, benchmark.rows)]))


def _cells(row: Measurement) -> tuple[str, ...]:
    size = (row.variant, str(row.nodes), str(row.ranks))
    if row.throughput is None or row.spread is None or row.efficiency is None:
        return (*size, *[EMPTY] * 4, row.fault)
    # At least three significant digits.
    speed = f"{row.throughput:.0f}" if row.throughput >= 100 else f"{row.throughput:.3g}"
    spread, efficiency = f"±{100 * row.spread:.0f} %", f"{100 * row.efficiency:.0f} %"
    return (*size, speed, spread, f"{row.speed_up:.2f}", efficiency, row.fault)


def _write_plot(benchmark: Benchmark, folder: Path) -> str:
    """Write the plot if matplotlib is installed; return a line for the user that names the files."""
    if all(row.throughput is None for row in benchmark.rows):
        return f"outputs: {folder}"
    with suppress(ModuleNotFoundError):
        for kind in ("svg", "png"):
            (folder / f"throughput.{kind}").write_bytes(draw(benchmark, kind))
        return f"picture: {folder}/throughput.svg and .png; outputs: {folder}"
    return f"for a picture: pip install 'clusterrun[bench]'; outputs: {folder}"


def draw(benchmark: Benchmark, kind: str) -> bytes:
    """Return the plot as the bytes of an ``svg`` or ``png`` file.

    For each variant, a dashed line shows linear scaling from its smallest size.
    """
    # The import takes a second.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    measured: dict[str, list[Measurement]] = {}
    for row in sorted(benchmark.rows, key=lambda row: row.ranks):
        if row.throughput is not None:
            measured.setdefault(row.variant, []).append(row)
    largest = max(row.ranks for row in benchmark.rows)
    # Text stays text, and equal numbers make equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusterrun"}):
        figure = Figure(figsize=(6.0, 3.6), layout="constrained")
        axes = figure.add_subplot()
        axes.plot([], [], "--", color="0.6", label="ideal")
        for name, rows in measured.items():
            speeds = [row.throughput or 0.0 for row in rows]
            spreads = [(row.spread or 0.0) * speed for row, speed in zip(rows, speeds, strict=True)]
            ranks = [row.ranks for row in rows]
            drawn = axes.errorbar(ranks, speeds, yerr=spreads, marker="o", capsize=3, label=name)
            ideal = [speeds[0], speeds[0] * largest / ranks[0]]
            colour = drawn.lines[0].get_color()
            axes.plot([ranks[0], largest], ideal, "--", color=colour, alpha=0.5, zorder=1)
        axes.set_xticks(sorted({row.ranks for row in benchmark.rows}))
        axes.set_xlabel("ranks")
        axes.set_ylabel(benchmark.unit)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=150, metadata=metadata)
    return file.getvalue()
