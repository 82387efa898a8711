"""The picture of ``clusterrun bench``: throughput by ranks, with the ideal line. Needs matplotlib."""

import io
from collections.abc import Mapping, Sequence

from clusterrun.report.throughput import Benchmark, ThroughputRow

Points = Sequence[tuple[int, float, float]]
"""Ranks, throughput, and its spread."""

INCHES = (6.0, 3.6)
DOTS_PER_INCH = 150


def curves(rows: Sequence[ThroughputRow]) -> Mapping[str, Points]:
    """Return the points of each variant, by ranks; those without a throughput are left out."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for row in sorted(rows, key=lambda row: row.ranks):
        if row.throughput is not None and row.spread is not None:
            point = row.ranks, row.throughput, row.spread * row.throughput
            found.setdefault(row.variant, []).append(point)
    order = dict.fromkeys(row.variant for row in rows)
    return {name: found[name] for name in order if name in found}


def ideal_line(rows: Sequence[ThroughputRow]) -> Sequence[tuple[int, float]]:
    """Return where the first variant would be if each rank added as much as those of its first size."""
    points = next(iter(curves(rows).values()), ())
    if not points:
        return ()
    ranks, throughput, _ = points[0]
    return [(each, throughput * each / ranks) for each in sorted({row.ranks for row in rows})]


def draw_throughput(benchmark: Benchmark, kind: str) -> bytes:
    """Return the picture as a file of this ``kind``: ``svg`` or ``png``."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text as text, and the same bytes for the same numbers.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "clusterrun"}):
        figure = Figure(figsize=INCHES, layout="constrained")
        axes = figure.add_subplot()
        ideal = ideal_line(benchmark.rows)
        axes.plot(*zip(*ideal, strict=True), "--", color="0.6", label="ideal")
        for name, points in curves(benchmark.rows).items():
            ranks, values, spreads = zip(*points, strict=True)
            axes.errorbar(ranks, values, yerr=spreads, marker="o", capsize=3, label=name)
        axes.set_xticks([ranks for ranks, _ in ideal])
        axes.set_xlabel("ranks")
        axes.set_ylabel(benchmark.unit)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    return file.getvalue()
