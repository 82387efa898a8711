"""The table of ``clusterrun bench``."""

from msgspec import Struct

from clusterrun.report.tables import aligned


class ThroughputRow(Struct, frozen=True):
    """A line of the table, and a point of the picture."""

    variant: str
    nodes: int
    ranks: int
    values: tuple[float, ...]
    """What the runs printed, without warm-up; () if they failed or printed none."""
    throughput: float | None
    """The median of the values, per second."""
    spread: float | None
    """Half the width of the middle half of the values, as a part of the median."""
    speed_up: float | None
    """Times the first variant at its smallest size."""
    efficiency: float | None
    """Throughput of a rank, as a part of that of the variant's smallest size."""
    fault: str = ""
    """``exit code 1``; "" if all runs ended well and printed their throughput."""


class Benchmark(Struct, frozen=True):
    """All rows, as ``clusterrun bench --json`` prints them."""

    unit: str
    """``images/s``."""
    rows: tuple[ThroughputRow, ...]
    folder: str
    """Where the outputs, this table and the pictures lie."""


def throughput_table(benchmark: Benchmark) -> str:
    """Return it, without a trailing newline."""
    heads = ("variant", "nodes", "ranks", benchmark.unit, "spread", "speed-up", "efficiency", "")
    return "\n".join(aligned([heads, *map(_cells, benchmark.rows)]))


def number(value: float) -> str:
    """Return it with three digits at least."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _cells(row: ThroughputRow) -> tuple[str, ...]:
    size = (row.variant, str(row.nodes), str(row.ranks))
    if row.throughput is None or row.spread is None:
        return (*size, "-", "-", "-", "-", row.fault)
    speed = (number(row.throughput), f"±{100 * row.spread:.0f} %")
    return (*size, *speed, f"{row.speed_up:.2f}", f"{100 * (row.efficiency or 0):.0f} %", row.fault)
