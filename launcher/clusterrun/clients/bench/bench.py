"""``clusterrun bench SCRIPT``: how much faster more ranks, or other options, make a script.

Each run is a whole launch: a variant of the command line at one size. What a run prints is kept in a
file, and its throughput is read from there.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from shutil import which
from statistics import median, quantiles
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.cli.printing import complain, json_text, print_text
from clusterrun.cli.splitting import split
from clusterrun.clients.bench.metric import find_pattern, unit_in, values_in, without_warm_up
from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
from clusterrun.cpuset import CpuSet
from clusterrun.errors import ExitCode, MachineError, UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.clusters.slurm import allocation_here
from clusterrun.job.declaring import Option, Value
from clusterrun.job.options import Files, Launcher
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.this_process import this_process
from clusterrun.job.values import number, whole_number
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.report.tables import NOTHING, aligned

USUAL_FOLDER = "clusterrun-bench"
OUTPUT = "output.txt"
"""In the folder of a run: what all of its ranks and agents print."""
TABLE = "results.json"
PICTURE = "throughput"

INCHES = (6.0, 3.6)
DOTS_PER_INCH = 150

UNCLEAR = 1
"""The exit code if all runs ended well, and one has no throughput, or one of 0."""

FEW_VALUES = 4
WIDE_SPREAD = 0.25
"""A row with a wider spread has a remark."""
HIGH_EFFICIENCY = 1.1
"""A row with a higher efficiency has a remark."""

STARTS_NODES = """\
bench starts other nodes by ssh:
  clusterrun bench --launcher ssh --hosts a,b ...
or by srun, in a batch script or a shell of salloc; type no srun before it"""

_SIZE = ("bench sets the size of each run", "give --nproc 1,2,4 and --nnodes 1,2 before the script")
_READ = ("bench reads what all ranks print", "leave it out")
_BY_HAND = ("a run of bench has no terminal", "leave it out; watch clusterrun status shows a run")
_FOLDER = ("bench has one folder for all runs", "give --log-dir before the script")

Refused = Mapping[str, tuple[str, str]]
"""Options that no run can keep: why, and what to do instead."""

REFUSED: Refused = {
    "nproc_per_node": _SIZE,
    **dict.fromkeys(("log_line_prefix_template", "ranks", "local_ranks_filter"), _READ),
    "pdb": _BY_HAND,
}
IN_A_VARIANT: Refused = {**REFUSED, "nnodes": _SIZE, "log_dir": _FOLDER}


class Variant(NamedTuple):
    """One way to run the script, as it is typed."""

    name: str
    options: tuple[str, ...]
    args: tuple[str, ...]
    """More arguments for the script."""


def _counts(text: str) -> tuple[int, ...]:
    """Read numbers from 1, separated by commas; one that is repeated counts once."""
    numbers = [whole_number(part) for part in text.split(",")]
    found = [each for each in numbers if each]
    if len(found) < len(numbers):
        raise UsageError(f"{text!r} is not a list of numbers from 1", "give one such as 1,2,4,8")
    return tuple(dict.fromkeys(found))


def _variant(text: str) -> Variant:
    """Read ``NAME: OPTIONS`` or ``NAME: OPTIONS -- ARGUMENTS``."""
    name, colon, rest = text.partition(":")
    example = "give a name and options: 'unbound: --numa-binding none'"
    if not colon:
        raise UsageError(f"{text!r} has no name", example)
    if not re.fullmatch(r"[\w.+-]+", name) or name.strip(".") == "":
        raise UsageError(
            f"{name!r} is not a name: it may have letters, digits, _, ., + and -", example
        )
    import shlex

    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", "close the quotes") from None
    at = words.index("--") if "--" in words else len(words)
    return Variant(name, tuple(words[:at]), tuple(words[at + 1 :]))


def _pattern(text: str) -> re.Pattern[str]:
    example = r"give one whose first group is the number: 'speed=([\d.]+)'"
    try:
        found = re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}", example) from None
    if not found.groups:
        raise UsageError(f"{text!r} has no group for the number", example)
    return found


class Measuring(Struct, frozen=True):
    """What it runs and reads."""

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
            "How many of the first numbers of each run to leave out",
            default="a fifth, at least one",
        ),
    ] = None
    rounds: Annotated[
        int,
        number("a number from 1", 1, hint="give one such as 3"),
        Option("How often to run each variant at each size; they take turns"),
    ] = 1


class Case(NamedTuple):
    """A variant at one size: what a row of the table is about."""

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
    """One job."""

    case: Case
    folder: Path
    """Its own: log files, and ``OUTPUT``."""
    words: tuple[str, ...]
    """What starts it."""

    def perform(self, launches: ChildLaunches) -> int:
        """Run it to its end; return its exit code.

        Raises:
            OSError: its folder can't be written.

        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / OUTPUT).open("wb") as file:
            return launches.run(self.words, file)[0]

    def printed(self) -> str:
        return (self.folder / OUTPUT).read_text(errors="replace")


class Measured(Struct, frozen=True):
    """A line of the table, and a point of the picture."""

    variant: str
    nodes: int
    ranks: int
    values: tuple[float, ...]
    """What the runs of all rounds printed, without warm-up; () if they failed or printed none."""
    throughput: float | None = None
    """The median of the values, per second; None if there are none, as in the next three."""
    spread: float | None = None
    """Half the width of the middle half of the values, as a part of the median."""
    speed_up: float | None = None
    """Times the first variant at its smallest size."""
    efficiency: float | None = None
    """Throughput of a rank, as a part of that of the variant's smallest size."""
    fault: str = ""
    """``exit code 1``; "" if all runs ended well and printed their throughput."""
    remark: str = ""
    """What a wide spread or a high efficiency may mean; "" if there is none."""

    @property
    def case(self) -> Case:
        return Case(self.variant, self.nodes, self.ranks // self.nodes)


class Benchmark(Struct, frozen=True):
    """All rows, as ``clusterrun bench --json`` prints them."""

    unit: str
    """``images/s``."""
    rows: tuple[Measured, ...]
    folder: str
    """Where the outputs, this table and the pictures lie."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Run the script at all sizes, and print the table; return the first exit code that is not 0.

    A signal ends the run that goes on, and the table has those before it.

    Raises:
        UsageError: a run is impossible; none has been started.
        MachineError: the folder can't be written.

    """
    _refuse(line, REFUSED, "")
    asked = line.read(Measuring)
    folder = Path(line.read(Files).log_dir or USUAL_FOLDER)
    runs = _plan(line, asked, folder, environ, called)
    ended: list[tuple[Run, int]] = []
    with ChildLaunches(environ) as launches:
        for at, run in enumerate(runs, 1):
            complain(f"clusterrun: run {at} of {len(runs)}: {run.case}")
            with _written_in(folder):
                code = run.perform(launches)
            if launches.interrupted:
                complain(f"clusterrun: interrupted: {len(ended)} of {len(runs)} runs are measured")
                break
            ended.append((run, code))
        if not ended:
            return launches.interrupted
        benchmark = read_outputs(ended, asked, folder)
        _show(benchmark, folder, as_json=line.read(Launcher).json)
        faulty = [str(row.case) for row in benchmark.rows if row.fault]
        unclear = UNCLEAR if faulty else ExitCode.SUCCESS
        code = launches.interrupted or next((code for _, code in ended if code), unclear)
        if faulty:
            complain(
                f"clusterrun: exit code {code}: runs without a throughput: {'; '.join(faulty)}"
            )
        return code


def _plan(
    line: CommandLine, asked: Measuring, folder: Path, environ: Mapping[str, str], called: str
) -> list[Run]:
    """Return the runs: variants take turns, so that what changes with time hits all of them.

    Raises:
        UsageError: a run is impossible.

    """
    # What all runs have.
    job = line.without({*Measuring.__struct_fields__, "json", "log_dir", "nnodes"})
    variants = _lines_of_variants(job, asked.variant, called)
    process = this_process(called)
    allocation = (
        allocation_here(Variables(environ), process) if _may_use_slurm(job, environ) else None
    )
    # A batch script alone, without srun, is the only node there is.
    alone = job if allocation is None else job.over(typed(nnodes="1"))
    given = resolve(alone, environ, process)
    if given.over_ssh is None and given.job.agents > 1:
        raise UsageError(
            f"bench starts other nodes itself, and is one of {given.job.agents} processes here"
            f" ({given.job.origin('nnodes')})",
            STARTS_NODES,
        )
    hosts = given.over_ssh.hosts if given.over_ssh else ()
    most = len(hosts) or (allocation.nodes if allocation else 1)
    sizes = _sizes(line, asked.nproc, most, environ)
    runs = []
    for at, (nodes, nproc), name in product(range(1, asked.rounds + 1), sizes, variants):
        own = folder / name / f"{nodes}-nodes-{nproc}-workers" / f"round-{at}"
        run = variants[name].over(typed(nproc_per_node=str(nproc), log_dir=str(own)))
        if hosts:
            run = run.without({"hostfile"}).over(typed(hosts=",".join(hosts[:nodes])))
        else:
            run = run.over(typed(nnodes="1"))
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
    names = [variant.name for variant in variants]
    for variant in variants:
        if names.count(variant.name) > 1:
            raise UsageError(
                f"--variant: two variants are called {variant.name}", "rename one of them"
            )
        line = job.over(_options_of(variant, called).options)
        lines[variant.name] = CommandLine(line.options, (*job.words, *variant.args))
    return lines or {"script": job}


def _options_of(variant: Variant, called: str) -> CommandLine:
    where = f"--variant {variant.name}: "
    try:
        found = split(variant.options, called, takes_script=False)
    except UsageError as error:
        hint = error.hint or _behind_dashes(variant, variant.options)
        raise UsageError(f"{where}{error.message}", hint) from None
    _refuse(found, IN_A_VARIANT, where)
    if found.words:
        raise UsageError(
            f"{where}{found.words[0]} is not an option", _behind_dashes(variant, found.words)
        )
    return found


def _refuse(line: CommandLine, refused: Refused, where: str) -> None:
    for name, (why, instead) in refused.items():
        if name in line.options:
            raise UsageError(f"{where}{line.options[name][-1].origin}: {why}", instead)


def _behind_dashes(variant: Variant, words: Sequence[str]) -> str:
    return f"put -- before arguments of the script: '{variant.name}: -- {' '.join(words)}'"


def _sizes(
    line: CommandLine, nproc: Sequence[int], most: int, environ: Mapping[str, str]
) -> list[tuple[int, int]]:
    """Return nodes and workers on each, by their ranks; there are ``most`` nodes."""
    nodes: tuple[int, ...] = (most,)
    if "nnodes" in line.options:
        try:
            nodes = _counts(line.options["nnodes"][-1].value)
        except UsageError as error:
            raise UsageError(f"--nnodes: {error.message}", error.hint) from None
    if max(nodes) > most:
        raise UsageError(
            f"--nnodes: {max(nodes)} nodes need as many hosts, and there"
            f" {'is 1' if most == 1 else f'are {most}'}",
            STARTS_NODES,
        )
    if not nproc:
        machine = inspect(Tree(ROOT), environ, CpuSet(os.sched_getaffinity(0)), "")
        gpus = max(1, len(machine.visible))
        nproc = sorted({*(1 << power for power in range(gpus.bit_length())), gpus})
    return sorted(product(nodes, nproc), key=lambda size: (size[0] * size[1], size[0]))


@contextmanager
def _written_in(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"{folder} can't be written: {error.strerror}", "give another one with --log-dir DIR"
        ) from None


def read_outputs(ended: Sequence[tuple[Run, int]], asked: Measuring, folder: Path) -> Benchmark:
    """Return what the runs printed; each has its exit code."""
    texts = [run.printed() for run, _ in ended]
    well = [text for text, (_, code) in zip(texts, ended, strict=True) if code == 0]
    pattern = asked.metric or find_pattern(well)
    values: dict[Case, list[float]] = {}
    faults: dict[Case, str] = {}
    for text, (run, code) in zip(texts, ended, strict=True):
        found = values_in(text, pattern) if pattern and code == 0 else []
        measured = without_warm_up(found, asked.warm_up)
        values.setdefault(run.case, []).extend(measured)
        if not found:
            how = f"exit code {code}" if code else "no throughput found: give --metric REGEX"
            faults.setdefault(run.case, f"{how}; see {run.folder}")
        elif (speed := median(measured)) <= 0:
            faults.setdefault(run.case, f"the throughput is {speed:g}; see {run.folder}")
    unit = unit_in(well, pattern) if pattern else "throughput"
    return Benchmark(unit, compare(values, faults), str(folder))


def compare(
    values: Mapping[Case, Sequence[float]], faults: Mapping[Case, str]
) -> tuple[Measured, ...]:
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

    def row(case: Case, found: Sequence[float]) -> Measured:
        fault = faults.get(case, "")
        if case not in speeds:
            return Measured(case.variant, case.nodes, case.ranks, tuple(found), fault=fault)
        speed, base = speeds[case], bases[case.variant]
        spread = _spread(found) / speed
        efficiency = (speed / case.ranks) / (speeds[base] / base.ranks)
        remarks = []
        if spread > WIDE_SPREAD:
            remarks.append(
                f"a wide spread{_if_few(found)}: other programs may have run meanwhile, or the first"
                " steps were slow; give more --rounds or --warm-up"
            )
        if efficiency > HIGH_EFFICIENCY:
            remarks.append(
                f"a high efficiency: {counted(base.ranks, 'rank')}{_if_few(values[base])} may have"
                " been slow, as a first run with cold caches is; or each rank's part of the work now"
                " fits into caches; give more --rounds"
            )
        return Measured(
            case.variant,
            case.nodes,
            case.ranks,
            tuple(found),
            throughput=speed,
            spread=spread,
            speed_up=speed / first,
            efficiency=efficiency,
            fault=fault,
            remark="; ".join(remarks),
        )

    return tuple(row(case, found) for case, found in values.items())


def _spread(values: Sequence[float]) -> float:
    """Return half the width of the middle half of the values; of all, if they are few."""
    if len(values) < FEW_VALUES:
        return (max(values) - min(values)) / 2
    low, _, high = quantiles(values, n=4)
    return (high - low) / 2


def _if_few(values: Sequence[float]) -> str:
    return f" (from {counted(len(values), 'number')} only)" if len(values) < FEW_VALUES else ""


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _show(benchmark: Benchmark, folder: Path, *, as_json: bool) -> None:
    """Write the table, print it, and draw the picture."""
    with _written_in(folder):
        (folder / TABLE).write_text(json_text(benchmark))
    print_text(json_text(benchmark) if as_json else table(benchmark))
    with _written_in(folder):
        pictured = write_picture(benchmark, folder)
    if not as_json:
        print_text(f"\n{pictured}")


def table(benchmark: Benchmark) -> str:
    """Return the rows, and below them each remark once, without a trailing newline."""
    heads = ("variant", "nodes", "ranks", benchmark.unit, "spread", "speed-up", "efficiency", "")
    lines = aligned([heads, *map(_cells, benchmark.rows)])
    remarked: dict[str, list[str]] = {}
    for row in benchmark.rows:
        if row.remark:
            remarked.setdefault(row.remark, []).append(str(row.case))
    remarks = [f"{'; '.join(cases)}: {remark}" for remark, cases in remarked.items()]
    return "\n".join([*lines, *([""] if remarks else []), *remarks])


def _cells(row: Measured) -> tuple[str, ...]:
    size = (row.variant, str(row.nodes), str(row.ranks))
    if row.throughput is None or row.spread is None:
        return (*size, *[NOTHING] * 4, row.fault)
    # With three digits at least.
    speed = f"{row.throughput:.0f}" if row.throughput >= 100 else f"{row.throughput:.3g}"
    efficiency = _percent(row.efficiency or 0)
    return (*size, speed, f"±{_percent(row.spread)}", f"{row.speed_up:.2f}", efficiency, row.fault)


def write_picture(benchmark: Benchmark, folder: Path) -> str:
    """Write the picture, with matplotlib; return a line that names it.

    Raises:
        OSError: the folder can't be written.

    """
    if all(row.throughput is None for row in benchmark.rows):
        return f"outputs: {folder}"
    with suppress(ModuleNotFoundError):
        for kind in ("svg", "png"):
            (folder / f"{PICTURE}.{kind}").write_bytes(draw(benchmark, kind))
        return f"picture: {folder / PICTURE}.svg and .png; outputs: {folder}"
    return f"for a picture: pip install 'clusterrun[bench]'; outputs: {folder}"


def draw(benchmark: Benchmark, kind: str) -> bytes:
    """Return the picture as a file of this ``kind``: ``svg`` or ``png``."""
    # It takes a second to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    ideal = ideal_lines(benchmark.rows)
    # Text as text, and the same bytes for the same numbers.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusterrun"}):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        # For the legend: it holds for the lines of all variants.
        axes.plot([], [], "--", color="0.6", label="ideal")
        for name, points in curves(benchmark.rows).items():
            ranks, values, spreads = zip(*points, strict=True)
            curve = axes.errorbar(ranks, values, yerr=spreads, marker="o", capsize=3, label=name)
            colour = curve.lines[0].get_color()
            axes.plot(*zip(*ideal[name], strict=True), "--", color=colour, alpha=0.5, zorder=1)
        axes.set_xticks(sorted({row.ranks for row in benchmark.rows}))
        axes.set_xlabel("ranks")
        axes.set_ylabel(benchmark.unit)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return file.getvalue()


def curves(rows: Sequence[Measured]) -> dict[str, list[tuple[int, float, float]]]:
    """Return ranks, throughput and its spread of each variant's rows that have them, by ranks."""
    found: dict[str, list[tuple[int, float, float]]] = {row.variant: [] for row in rows}
    for row in sorted(rows, key=lambda row: row.ranks):
        if row.throughput is not None and row.spread is not None:
            found[row.variant].append((row.ranks, row.throughput, row.spread * row.throughput))
    return {name: points for name, points in found.items() if points}


def ideal_lines(rows: Sequence[Measured]) -> dict[str, list[tuple[int, float]]]:
    """Return where each variant would be if every rank added as much as those of its first size."""
    sizes = sorted({row.ranks for row in rows})
    return {
        name: [(ranks, throughput * ranks / first) for ranks in sizes if ranks >= first]
        for name, [(first, throughput, _), *_] in curves(rows).items()
    }
