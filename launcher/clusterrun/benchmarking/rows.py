"""From what runs printed to the rows of the table. Pure."""

from collections.abc import Sequence
from statistics import median, quantiles

from msgspec import Struct

from clusterrun.report.throughput import ThroughputRow

FEW_VALUES = 4


class Measured(Struct, frozen=True):
    """All runs of one variant at one size."""

    variant: str
    nodes: int
    ranks: int
    values: tuple[float, ...]
    """Without warm-up, of all rounds."""
    fault: str = ""
    """Why there are none, or not of all rounds."""

    @property
    def throughput(self) -> float | None:
        return median(self.values) if self.values else None


def rows_of(measured: Sequence[Measured]) -> tuple[ThroughputRow, ...]:
    """Return the rows, in the same order; the first that has values is what all are compared with."""
    bases: dict[str, tuple[float, int]] = {}
    first: float | None = None
    for each in sorted(measured, key=lambda each: each.ranks):
        if each.throughput and each.variant not in bases:
            bases[each.variant] = each.throughput, each.ranks
    for each in measured:
        if first is None and each.variant in bases:
            first = bases[each.variant][0]
    return tuple(_row(each, first, bases.get(each.variant)) for each in measured)


def _row(each: Measured, first: float | None, base: tuple[float, int] | None) -> ThroughputRow:
    found = each.throughput
    if not found or first is None or base is None:
        nothing = None
        return ThroughputRow(
            each.variant, each.nodes, each.ranks, each.values, nothing, nothing, nothing, nothing,
            each.fault,
        )  # fmt: skip
    base_throughput, base_ranks = base
    return ThroughputRow(
        each.variant,
        each.nodes,
        each.ranks,
        each.values,
        throughput=found,
        spread=_spread(each.values) / found,
        speed_up=found / first,
        efficiency=(found / each.ranks) / (base_throughput / base_ranks),
        fault=each.fault,
    )


def _spread(values: Sequence[float]) -> float:
    """Return half the width of the middle half of the values; of all, if they are few."""
    if len(values) < FEW_VALUES:
        return (max(values) - min(values)) / 2
    low, _, high = quantiles(values, n=4)
    return (high - low) / 2
