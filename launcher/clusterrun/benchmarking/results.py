"""What the runs of a benchmark printed, as rows, and the files that show them."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from clusterrun.benchmarking.metric import find_pattern, unit_in, values_in, without_warm_up
from clusterrun.benchmarking.rows import Measured, rows_of
from clusterrun.benchmarking.runs import Run, Size, printed_by
from clusterrun.report.throughput import Benchmark

TABLE = "results.json"
PICTURE = "throughput"


class Reading(NamedTuple):
    """How outputs are read."""

    pattern: re.Pattern[str] | None
    """Its first group is the throughput; None: a common form."""
    warm_up: int | None
    """How many values to leave out; None: a fifth."""


class Done(NamedTuple):
    """A run that has ended."""

    run: Run
    code: int
    """Its exit code."""


def benchmark_of(done: Sequence[Done], folder: Path, reading: Reading) -> Benchmark:
    """Read what the runs printed."""
    texts = [printed_by(each.run, folder) for each in done]
    well = [text for text, each in zip(texts, done, strict=True) if each.code == 0]
    pattern = reading.pattern or find_pattern(well)
    values: dict[tuple[str, Size], list[float]] = {}
    faults: dict[tuple[str, Size], str] = {}
    for text, (run, code) in zip(texts, done, strict=True):
        where = run.variant.name, run.size
        found = values_in(text, pattern) if pattern and code == 0 else []
        values.setdefault(where, []).extend(without_warm_up(found, reading.warm_up))
        if not found:
            how = f"exit code {code}" if code else "no throughput found: give --metric REGEX"
            faults.setdefault(where, f"{how}; see {folder / run.place}")
    measured = [
        Measured(name, size.nodes, size.ranks, tuple(found), faults.get((name, size), ""))
        for (name, size), found in values.items()
    ]
    unit = unit_in(well, pattern) if pattern else "throughput"
    return Benchmark(unit, rows_of(measured), str(folder))


def write_table(benchmark: Benchmark, folder: Path) -> None:
    """Write the rows for programs.

    Raises:
        OSError: the folder can't be written.

    """
    (folder / TABLE).write_bytes(msgspec.json.format(msgspec.json.encode(benchmark), indent=2))


def write_picture(benchmark: Benchmark, folder: Path) -> str:
    """Write the picture, with matplotlib; return a line that names it.

    Raises:
        OSError: the folder can't be written.

    """
    if all(row.throughput is None for row in benchmark.rows):
        return f"outputs: {folder}"
    with suppress(ModuleNotFoundError):
        # It takes a second to import.
        from clusterrun.report.throughput_picture import draw_throughput

        for kind in ("svg", "png"):
            (folder / f"{PICTURE}.{kind}").write_bytes(draw_throughput(benchmark, kind))
        return f"picture: {folder / PICTURE}.svg and .png; outputs: {folder}"
    return f"for a picture: pip install 'clusterrun[bench]'; outputs: {folder}"
