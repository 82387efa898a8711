"""``clusterrun bench SCRIPT``: the throughput of a script by the number of its ranks and by options.

Each run is a whole launch of one variant at one size. Its output is kept in a file, and its
throughput is read from there.
"""

import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
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
from clusterrun.cpuset import own_cpus
from clusterrun.errors import ExitCode, MachineError, UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.clusters.slurm import current_allocation
from clusterrun.job.declarations import Option, Value
from clusterrun.job.options import Files, Launcher
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.this_process import this_process
from clusterrun.job.values import number, whole_number
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.report.tables import NOTHING, aligned

OUTPUT = "output.txt"

STARTS_NODES = """\
bench starts other nodes by ssh:
  clusterrun bench --launcher ssh --hosts a,b ...
or by srun, in a batch script or salloc shell; do not put srun before it"""

RESERVED = ("nproc_per_node", "log_line_prefix_template", "ranks", "local_ranks_filter", "pdb")
"""Options that no run can have."""


class Variant(NamedTuple):
    """``NAME: OPTIONS -- ARGUMENTS``, as it is typed."""

    name: str
    options: tuple[str, ...]
    args: tuple[str, ...]


def _counts(text: str) -> tuple[int, ...]:
    """Read numbers from 1, separated by commas; one that is repeated counts once."""
    found = [whole_number(part) for part in text.split(",")]
    if not all(found):
        raise UsageError(f"{text!r} is not a list of numbers from 1", "give one such as 1,2,4,8")
    return tuple(dict.fromkeys(filter(None, found)))


def _variant(text: str) -> Variant:
    """Read one; its name is also that of a folder."""
    name, _, rest = text.partition(":")
    if ":" not in text or not re.fullmatch(r"[\w.+-]*[\w+-][\w.+-]*", name):
        raise UsageError(
            f"{text!r} has no name, of letters, digits, _, ., + and -, before a colon",
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
    """Its own options."""

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
            "Run all sizes with these options, too; after -- come arguments for the script; may be"
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
    """A variant at one size: a row of the table."""

    variant: str
    nodes: int
    nproc: int
    """Workers on each node."""

    @property
    def ranks(self) -> int:
        return self.nodes * self.nproc

    def __str__(self) -> str:
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.variant}, {counted(self.ranks, 'rank')}{where}"


class Run(NamedTuple):
    """One launch."""

    case: Case
    folder: Path
    """Has its log files, and ``output.txt``: all that its ranks and agents print."""
    words: tuple[str, ...]


class Measurement(Struct, frozen=True):
    """A line of the table, and a point of the picture."""

    variant: str
    nodes: int
    ranks: int
    values: tuple[float, ...]
    """What the runs of all rounds printed, without warm-up; () if they failed or printed none."""
    throughput: float | None = None
    """The median of the values, per second; None if there is none, as in the next three."""
    spread: float | None = None
    """Half the width of the middle half of the values, as a part of the median."""
    speed_up: float | None = None
    """Times the first variant at its smallest size."""
    efficiency: float | None = None
    """Throughput of a rank, as a part of that of the variant's smallest size."""
    fault: str = ""
    """``exit code 1``; "" if all runs ended well and printed their throughput."""


class Benchmark(Struct, frozen=True):
    """All rows, as ``clusterrun bench --json`` prints them."""

    unit: str
    """``images/s``."""
    rows: tuple[Measurement, ...]
    folder: str
    """Where the outputs, this table and the pictures are."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Run the script at all sizes, and print the table; return the first exit code that is not 0.

    A signal ends the current run; the table has those before it.

    Raises:
        UsageError: a run is impossible; none has been started.
        MachineError: the folder can't be written.

    """
    _refuse(line, RESERVED, "")
    asked = line.read(BenchOptions)
    folder = Path(line.read(Files).log_dir or "clusterrun-bench")
    runs = _plan(line, asked, folder, environ, called)
    ended: list[tuple[Run, int]] = []
    with ChildLaunches(environ) as launches:
        for at, run in enumerate(runs, 1):
            complain(f"clusterrun: run {at} of {len(runs)}: {run.case}")
            with _written_in(folder):
                run.folder.mkdir(parents=True, exist_ok=True)
                with (run.folder / OUTPUT).open("wb") as file:
                    code, _ = launches.run(run.words, file)
            if launches.interrupted:
                complain(f"clusterrun: interrupted: {len(ended)} of {len(runs)} runs are measured")
                break
            ended.append((run, code))
        if not ended:
            return launches.interrupted
        benchmark = read_outputs(ended, asked, folder)
        _show(benchmark, folder, as_json=line.read(Launcher).json)
        faulty = [row for row in benchmark.rows if row.fault]
        code = launches.interrupted or next((code for _, code in ended if code), len(faulty) and 1)
        if faulty:
            names = "; ".join(
                str(Case(row.variant, row.nodes, row.ranks // row.nodes)) for row in faulty
            )
            complain(f"clusterrun: exit code {code}: runs without a throughput: {names}")
        return code or ExitCode.SUCCESS


# Which runs there are.


def _plan(
    line: CommandLine, asked: BenchOptions, folder: Path, environ: Mapping[str, str], called: str
) -> list[Run]:
    """Return the runs: variants take turns, so that what changes with time changes all of them.

    Raises:
        UsageError: a run is impossible.

    """
    job = line.without({*BenchOptions.__struct_fields__, "json", "log_dir", "nnodes"})
    variants = _lines_of_variants(job, asked.variant, called)
    process, allocation = this_process(called), None
    if _may_use_slurm(job, environ):
        allocation = current_allocation(Variables(environ), process)
    # A batch script alone, without srun, is the only node there is.
    given = resolve(job.with_options(typed(nnodes="1")) if allocation else job, environ, process)
    if given.over_ssh is None and given.job.agents > 1:
        raise UsageError(
            f"bench starts the other nodes itself, but was started as one of {given.job.agents}"
            " processes here"
            f" ({given.job.origin('nnodes')})",
            STARTS_NODES,
        )
    hosts = given.over_ssh.hosts if given.over_ssh else ()
    sizes = _sizes(line, asked, len(hosts) or (allocation.nodes if allocation else 1), environ)
    runs = []
    for at, (nodes, nproc), name in product(range(1, asked.rounds + 1), sizes, variants):
        own = folder / name / f"{nodes}-nodes-{nproc}-workers" / f"round-{at}"
        run = variants[name].with_options(typed(nproc_per_node=str(nproc), log_dir=str(own)))
        if hosts:
            run = run.without({"hostfile"}).with_options(typed(hosts=",".join(hosts[:nodes])))
        else:
            run = run.with_options(typed(nnodes="1"))
        resolve(run, environ, process)
        srun: tuple[str, ...] = ()
        if allocation is not None:
            # Each agent counts the nodes of its step.
            run, srun = run.without({"nnodes"}), allocation.srun(nodes)
        runs.append(Run(Case(name, nodes, nproc), own, (*srun, *CLUSTERRUN, *run.argv())))
    return runs


def _may_use_slurm(job: CommandLine, environ: Mapping[str, str]) -> bool:
    """Return whether there is srun, and neither --cluster none nor --launcher ssh is typed."""
    names = [text.value for text in job.options.get("cluster", ())]
    asked = names[-1:] in ([], ["slurm"]) and "launcher" not in job.options
    return asked and which("srun", path=environ.get("PATH")) is not None


def _lines_of_variants(
    job: CommandLine, variants: Sequence[Variant], called: str
) -> dict[str, CommandLine]:
    """Return the command line of each variant by its name; of the job alone if there are none."""
    lines: dict[str, CommandLine] = {}
    for name, options, args in variants:
        where = f"--variant {name}: "
        try:
            found = split(options, called, takes_script=False)
        except UsageError as error:
            hint = error.hint or f"put -- before arguments of the script: '{name}: -- ...'"
            raise UsageError(f"{where}{error.message}", hint) from None
        _refuse(found, (*RESERVED, "nnodes", "log_dir"), where)
        if found.words:
            raise UsageError(
                f"{where}{found.words[0]} is not an option",
                f"put -- before arguments of the script: '{name}: -- {' '.join(found.words)}'",
            )
        if name in lines:
            raise UsageError(f"--variant: two variants are called {name}", "rename one of them")
        lines[name] = CommandLine(job.with_options(found.options).options, (*job.words, *args))
    return lines or {"script": job}


def _refuse(line: CommandLine, reserved: Sequence[str], where: str) -> None:
    for name in reserved:
        if name in line.options:
            raise UsageError(
                f"{where}{line.options[name][-1].origin}: can't be used in a bench run",
                "leave it out; --nproc 1,2,4, --nnodes 1,2 and --log-dir DIR go before the script",
            )


def _sizes(
    line: CommandLine, asked: BenchOptions, most: int, environ: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Return nodes and workers on each, by their ranks; there are ``most`` nodes."""
    nodes: tuple[int, ...] = (most,)
    if "nnodes" in line.options:
        try:
            nodes = _counts(line.options["nnodes"][-1].value)
        except UsageError as error:
            raise UsageError(f"--nnodes: {error.message}", error.hint) from None
    if max(nodes) > most:
        there = "is 1" if most == 1 else f"are {most}"
        raise UsageError(
            f"--nnodes: {max(nodes)} nodes need as many hosts, and there {there}", STARTS_NODES
        )
    nproc = asked.nproc
    if not nproc:
        machine = inspect(Tree(ROOT), environ, own_cpus(), "")
        gpus = max(1, len(machine.visible))
        nproc = tuple({*(1 << power for power in range(gpus.bit_length())), gpus})
    return sorted(product(nodes, nproc), key=lambda size: (size[0] * size[1], size[0]))


# What the runs have printed.

_NO_COUNTER = r"(?<![\d.,_])(?<!epoch )(?<!step )(?<!iter )(?<!iteration )(?<!batch )(?<!rank )"
"""Before a number: "step 10 tokens/s: 512" is about 512."""
_NO_LABEL = r"(?![\"']?\s*[:=]\s*\d)"
"""After a unit: the number follows it."""
_NUMBER = r"(?P<number>\d[\d,_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_PER_SECOND = r"(?:\s*/\s*|[ _]per[ _])(?:seconds?|secs?|s)\b"
_WORK = r"(?P<unit>samples?|examples?|images?|imgs?|frames?|tokens?|toks?|sequences?|seqs?)"
_STEPS = r"(?P<unit>steps?|iterations?|iters?|its?|batch(?:es)?)"

COMMON = tuple(
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
``2.1s/it``. Those of work come first: a step of more ranks may do more work."""

_RANK = re.compile(r"\[rank (\d+)[^\]]*\] ?")
"""The prefix of a line; a single worker's lines have none."""


def read_outputs(ended: Sequence[tuple[Run, int]], asked: BenchOptions, folder: Path) -> Benchmark:
    """Return what the runs printed; each has its exit code."""
    texts = [(run.folder / OUTPUT).read_text(errors="replace") for run, _ in ended]
    well = [text for text, (_, code) in zip(texts, ended, strict=True) if code == 0]
    pattern = asked.metric or find_pattern(well)
    values: dict[Case, list[float]] = {}
    faults: dict[Case, str] = {}
    for text, (run, code) in zip(texts, ended, strict=True):
        found = values_in(text, pattern) if pattern and code == 0 else []
        measured = without_warm_up(found, asked.warm_up)
        values.setdefault(run.case, []).extend(measured)
        fault = f"exit code {code}" if code else ""
        if not found:
            fault = fault or "no throughput found: give --metric REGEX"
        elif median(measured) <= 0:
            fault = f"the throughput is {median(measured):g}"
        if fault:
            faults.setdefault(run.case, f"{fault}; see {run.folder}")
    return Benchmark(unit_in(well, pattern), compare(values, faults), str(folder))


def find_pattern(texts: Sequence[str]) -> re.Pattern[str] | None:
    """Return the first common form that one of the outputs has; None if none has any."""
    return next((each for each in COMMON if any(map(each.search, texts))), None)


def unit_in(texts: Sequence[str], pattern: re.Pattern[str] | None) -> str:
    """Return what is counted: ``images/s``; ``per second`` if the pattern does not tell."""
    found = next(filter(None, map(pattern.search, texts)), None) if pattern else None
    unit = found.groupdict().get("unit") if found else None
    return f"{unit}/s" if unit and unit.lower() != "throughput" else "per second"


def values_in(text: str, pattern: re.Pattern[str]) -> list[float]:
    """Return the throughput in one run's output, in its order.

    Where several ranks print it, the lowest counts: each prints that of the whole job, or its own.
    """
    by_rank: dict[int, list[float]] = {}
    for line in re.split(r"[\n\r]", text):
        prefix = _RANK.match(line)
        for found in pattern.finditer(line, prefix.end() if prefix else 0):
            # A user's group may be in a branch that did not match, or match what is not a number.
            with suppress(ValueError, ZeroDivisionError):
                value = _value_of(found, is_common=pattern in COMMON)
                if isfinite(value):
                    by_rank.setdefault(int(prefix[1]) if prefix else 0, []).append(value)
    return by_rank[min(by_rank)] if by_rank else []


def _value_of(found: re.Match[str], *, is_common: bool) -> float:
    groups = found.groupdict() if is_common else {"number": found[1]}
    if seconds := groups.get("seconds"):
        return 1 / float(seconds)
    factor = {"": 1.0, "k": 1e3, "m": 1e6}[(groups.get("factor") or "").lower()]
    return float((groups["number"] or "").replace(",", "").replace("_", "")) * factor


def without_warm_up(values: Sequence[float], warm_up: int | None) -> tuple[float, ...]:
    """Return the values after the first ``warm_up``; at least the last one.

    None: a fifth of them, at least one if there are two or more.
    """
    first = max(1, len(values) // 5) if warm_up is None else warm_up
    return tuple(values[min(first, len(values) - 1) :]) if values else ()


def compare(
    values: Mapping[Case, Sequence[float]], faults: Mapping[Case, str]
) -> tuple[Measurement, ...]:
    """Return a row for each case, in the same order.

    Args:
        values: what the runs of each case printed, without warm-up.
        faults: why there are none, or not of all rounds.

    """
    medians = {case: median(found) for case, found in values.items() if found}
    speeds = {case: speed for case, speed in medians.items() if speed > 0}
    bases: dict[str, Case] = {}
    for case in sorted(speeds, key=lambda case: case.ranks):
        bases.setdefault(case.variant, case)
    # Speed-up is that over the first variant with a throughput; without any, no row has one.
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
    """Return half the width of the middle half of the values; of all, if there are fewer than four."""
    if len(values) < 4:
        return (max(values) - min(values)) / 2
    low, _, high = quantiles(values, n=4)
    return (high - low) / 2


# The table and the picture.


@contextmanager
def _written_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{folder} can't be written: {error.strerror}", "give another one with --log-dir DIR"
        ) from None


def _show(benchmark: Benchmark, folder: Path, *, as_json: bool) -> None:
    """Write the table, print it, and draw the picture."""
    with _written_in(folder):
        (folder / "results.json").write_text(json_text(benchmark))
    print_text(json_text(benchmark) if as_json else table(benchmark))
    with _written_in(folder):
        pictured = _write_picture(benchmark, folder)
    if not as_json:
        print_text(f"\n{pictured}")


def table(benchmark: Benchmark) -> str:
    """Return the rows, without a trailing newline."""
    heads = ("variant", "nodes", "ranks", benchmark.unit, "spread", "speed-up", "efficiency", "")
    return "\n".join(aligned([heads, *map(_cells, benchmark.rows)]))


def _cells(row: Measurement) -> tuple[str, ...]:
    size = (row.variant, str(row.nodes), str(row.ranks))
    if row.throughput is None or row.spread is None or row.efficiency is None:
        return (*size, *[NOTHING] * 4, row.fault)
    # With three digits at least.
    speed = f"{row.throughput:.0f}" if row.throughput >= 100 else f"{row.throughput:.3g}"
    spread, efficiency = f"±{100 * row.spread:.0f} %", f"{100 * row.efficiency:.0f} %"
    return (*size, speed, spread, f"{row.speed_up:.2f}", efficiency, row.fault)


def _write_picture(benchmark: Benchmark, folder: Path) -> str:
    """Write the picture, with matplotlib; return a line that names it."""
    if all(row.throughput is None for row in benchmark.rows):
        return f"outputs: {folder}"
    with suppress(ModuleNotFoundError):
        for kind in ("svg", "png"):
            (folder / f"throughput.{kind}").write_bytes(draw(benchmark, kind))
        return f"picture: {folder}/throughput.svg and .png; outputs: {folder}"
    return f"for a picture: pip install 'clusterrun[bench]'; outputs: {folder}"


def draw(benchmark: Benchmark, kind: str) -> bytes:
    """Return the picture as a file of this ``kind``: ``svg`` or ``png``.

    Each variant has a dashed line: if every rank added as much as those of its smallest size.
    """
    # It takes a second to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    measured: dict[str, list[Measurement]] = {}
    for row in sorted(benchmark.rows, key=lambda row: row.ranks):
        if row.throughput is not None:
            measured.setdefault(row.variant, []).append(row)
    largest = max(row.ranks for row in benchmark.rows)
    # Text as text, and the same bytes for the same numbers.
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
