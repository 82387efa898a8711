"""The table of ``clusterrun watch``: as many lines and columns as the terminal has."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from clusterrun.domain.cpuset import runs
from clusterrun.report.amounts import duration, size
from clusterrun.report.job_status import JobStatus, ShownNode, cells_of
from clusterrun.report.rank_cells import GPU_HEADS, gpu_cells, shown_heads
from clusterrun.report.worker_table import aligned, narrowed

LINES_AROUND = 3
"""The head line, the column heads and the last line."""

LEAST_OF_LAST_LINE = 30
"""Columns of the terminal; with fewer for the last line, some of ours are left out."""

HEADS = (
    *("rank", "host", "state", "CPU use", "memory"),
    *GPU_HEADS,
    *("lines/s", "quiet for", "last line"),
)
LEFT_OUT_FIRST = ("memory", "lines/s", "temperature", "power", "GPU memory")
FOLDED_HEADS = (
    *("node", "host", "ranks", "states", "CPU use", "memory"),
    *GPU_HEADS,
    "quiet for",
)


class Line(Struct, frozen=True):
    """One line of the screen."""

    text: str
    is_bad: bool = False
    """A rank does not run, is behind, or a node does not answer."""


def live_lines(status: JobStatus, width: int, height: int, advice: str) -> list[Line]:
    """Return at most ``height`` lines of at most ``width`` columns; nodes are folded if need be.

    ``advice`` is the last line: how to end it.
    """
    ranks = sum(len(node.ranks) for node in status.nodes)
    head = (
        f"{status.run_id}: {ranks} of {status.number_of_ranks} ranks shown,"
        f" for {duration(status.running_for)}: {status.program}"
    )
    missing = [
        Line(f"node {node.node_rank} ({node.host}) {node.why}", is_bad=True)
        for node in status.missing
    ]
    room = max(1, height - LINES_AROUND - len(missing))
    table = _ranks(status, width) if ranks <= room else _nodes(status)
    heads, *rows = table
    left_out = len(rows) - room
    if left_out > 0:
        rows = [*rows[: room - 1], Line(f"... {left_out + 1} more lines")]
    lines = [Line(head), heads, *rows, *missing, Line(advice)]
    return [Line(line.text[:width], line.is_bad) for line in lines[:height]]


def _ranks(status: JobStatus, width: int) -> list[Line]:
    cells = cells_of(status.nodes)
    heads = shown_heads(HEADS, cells)
    rows = narrowed(cells, heads, width, LEFT_OUT_FIRST, LEAST_OF_LAST_LINE)
    bad = [row["state"] != "running" or row["rank"] == str(status.behind) for row in cells]
    return [Line(text, is_bad) for text, is_bad in zip(rows, [False, *bad], strict=True)]


def _nodes(status: JobStatus) -> list[Line]:
    cells = [_folded(node) for node in status.nodes]
    heads = shown_heads(FOLDED_HEADS, cells)
    rows = aligned([heads, *(tuple(row[head] for head in heads) for row in cells)])
    bad = [
        any(
            rank.state.state != "running" or rank.state.rank == status.behind for rank in node.ranks
        )
        for node in status.nodes
    ]
    return [Line(text, is_bad) for text, is_bad in zip(rows, [False, *bad], strict=True)]


def _folded(node: ShownNode) -> dict[str, str]:
    states = Counter(rank.state.state for rank in node.ranks)
    uses = [rank.cpu_use for rank in node.ranks if rank.cpu_use is not None]
    quiet = [rank.state.quiet_for for rank in node.ranks if rank.state.quiet_for is not None]
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return {
        "node": str(node.node_rank),
        "host": node.host,
        "ranks": _listed([rank.state.rank for rank in node.ranks]),
        "states": counts or node.state,
        "CPU use": f"{sum(uses) * 100:.0f} %" if uses else "-",
        "memory": size(sum(rank.state.memory for rank in node.ranks)),
        **gpu_cells([gpu for rank in node.ranks for gpu in rank.state.gpu_states]),
        "quiet for": duration(max(quiet)) if quiet else "-",
    }


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(runs(ranks)) or "-"
