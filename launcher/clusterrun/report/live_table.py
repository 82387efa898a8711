"""The table of ``clusterrun watch``: as many lines and columns as the terminal has."""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Struct

from clusterrun.domain.cpuset import runs
from clusterrun.report.job_status import JobStatus, ShownNode, duration, rank_cells, size
from clusterrun.report.worker_table import aligned

LINES_AROUND = 3
"""The head line, the column heads and the last line."""

NARROW = 100
"""Terminals with fewer columns show fewer of ours."""

HEADS = ("rank", "host", "state", "CPU use", "memory", "quiet for", "last line")
FOLDED_HEADS = ("node", "host", "ranks", "states", "CPU use", "memory", "quiet for")


class Line(Struct, frozen=True):
    """One line of the screen."""

    text: str
    is_bad: bool = False
    """A rank does not run, is behind, or a node does not answer."""


def live_lines(status: JobStatus, width: int, height: int) -> list[Line]:
    """Return at most ``height`` lines of at most ``width`` columns; nodes are folded if need be."""
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
    lines = [Line(head), heads, *rows, *missing, Line("Ctrl-C ends watching, not the job")]
    return [Line(line.text[:width], line.is_bad) for line in lines[:height]]


def _ranks(status: JobStatus, width: int) -> list[Line]:
    columns = HEADS if width >= NARROW else tuple(each for each in HEADS if each != "memory")
    cells = [rank_cells(node, rank) for node in status.nodes for rank in node.ranks]
    rows = aligned([columns, *([row[column] for column in columns] for row in cells)])
    bad = [row["state"] != "running" or row["rank"] == str(status.behind) for row in cells]
    return [Line(text, is_bad) for text, is_bad in zip(rows, [False, *bad], strict=True)]


def _nodes(status: JobStatus) -> list[Line]:
    rows = aligned([FOLDED_HEADS, *(tuple(_folded(node)) for node in status.nodes)])
    bad = [
        any(
            rank.state.state != "running" or rank.state.rank == status.behind for rank in node.ranks
        )
        for node in status.nodes
    ]
    return [Line(text, is_bad) for text, is_bad in zip(rows, [False, *bad], strict=True)]


def _folded(node: ShownNode) -> Iterator[str]:
    states = Counter(rank.state.state for rank in node.ranks)
    uses = [rank.cpu_use for rank in node.ranks if rank.cpu_use is not None]
    quiet = [rank.state.quiet_for for rank in node.ranks if rank.state.quiet_for is not None]
    yield str(node.node_rank)
    yield node.host
    yield _listed([rank.state.rank for rank in node.ranks])
    yield ", ".join(f"{count} {state}" for state, count in states.most_common()) or node.state
    yield f"{sum(uses):.0%}".replace("%", " %") if uses else "-"
    yield size(sum(rank.state.memory for rank in node.ranks))
    yield duration(max(quiet)) if quiet else "-"


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(runs(ranks)) or "-"
