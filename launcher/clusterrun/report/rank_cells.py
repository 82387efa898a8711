"""One rank of a running job as the cells of a table."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from clusterrun.policy.looks import GpuState, RankState
from clusterrun.report.amounts import duration, size

GPU_HEADS = ("GPU use", "GPU memory", "temperature", "power")
"""Columns of tables in which a GPU has figures."""

NOT_KNOWN = "-"


class ShownRank(Struct, frozen=True):
    """One rank as shown."""

    state: RankState
    cpu_use: float | None
    """CPUs in use, by two looks; None if one is missing."""
    lines_per_second: float | None = None
    """Printed, by two looks; None if one is missing, or its output is not seen."""


def shown_rank(now: RankState, before: RankState | None, seconds: float) -> ShownRank:
    """Return a rank with its speed between two looks.

    Args:
        now: as the later look has it.
        before: the same process at the earlier one; None if there is none.
        seconds: between the two.

    """
    if before is None or not now.pid or seconds <= 0:
        return ShownRank(now, None)
    use = round(max(0.0, now.cpu_seconds - before.cpu_seconds) / seconds, 2)
    lines = round(max(0, now.lines - before.lines) / seconds, 1)
    return ShownRank(now, use, None if now.quiet_for is None else lines)


def rank_cells(node_rank: int, host: str, shown: ShownRank) -> dict[str, str]:
    """Return the cells of a rank by the heads of their columns."""
    rank = shown.state
    return {
        "rank": str(rank.rank),
        "node": str(node_rank),
        "host": host,
        "state": rank.state,
        "pid": str(rank.pid or NOT_KNOWN),
        "GPU": rank.gpus or NOT_KNOWN,
        "CPUs": rank.cpus or "not bound",
        "CPU use": NOT_KNOWN if shown.cpu_use is None else f"{shown.cpu_use * 100:.0f} %",
        "memory": size(rank.memory) if rank.memory else NOT_KNOWN,
        **gpu_cells(rank.gpu_states),
        "lines/s": _rate(shown.lines_per_second),
        "quiet for": NOT_KNOWN if rank.quiet_for is None else duration(rank.quiet_for),
        "last line": rank.last_line,
    }


def gpu_cells(gpus: Sequence[GpuState]) -> dict[str, str]:
    """Return the cells of some GPUs together: mean use, sum of memory and power, most heat."""
    uses = [gpu.use for gpu in gpus if gpu.use is not None]
    used = [gpu.memory for gpu in gpus if gpu.memory is not None]
    heats = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    return {
        "GPU use": f"{sum(uses) / len(uses):.0f} %" if uses else NOT_KNOWN,
        "GPU memory": size(sum(used)) if used else NOT_KNOWN,
        "temperature": f"{max(heats)} C" if heats else NOT_KNOWN,
        "power": f"{sum(watts)} W" if watts else NOT_KNOWN,
    }


def shown_heads(heads: Sequence[str], rows: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the heads without those of GPUs of which no row has a figure."""
    known = {head for row in rows for head in GPU_HEADS if row.get(head, NOT_KNOWN) != NOT_KNOWN}
    return tuple(head for head in heads if head not in GPU_HEADS or head in known)


def _rate(lines: float | None) -> str:
    if lines is None:
        return NOT_KNOWN
    return f"{lines:.1f}" if 0 < lines < 10 else f"{lines:.0f}"
