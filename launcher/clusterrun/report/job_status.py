"""Running jobs as tables for people and as types for JSON: ``clusterrun ps`` and ``status``."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from clusterrun.domain.counts import counted
from clusterrun.policy.looks import JobLook, MissingNode, NodeRanks, RankState
from clusterrun.report.amounts import duration
from clusterrun.report.rank_cells import (
    GPU_HEADS,
    ShownRank,
    rank_cells,
    shown_heads,
    shown_rank,
)
from clusterrun.report.worker_table import narrowed

SECONDS_BEHIND = 5.0
"""A rank that has printed nothing for longer, and for much longer than the others, is behind."""

TIMES_BEHIND = 3.0
"""How much longer."""

HEADS = (
    *("rank", "node", "host", "state", "pid", "GPU", "CPUs", "CPU use", "memory"),
    *GPU_HEADS,
    *("lines/s", "quiet for", "last line"),
)
LEFT_OUT_FIRST = (
    *("memory", "lines/s", "temperature", "power", "GPU memory"),
    *("CPUs", "GPU", "node", "pid"),
)
LEAST_OF_LAST_LINE = 30
"""Columns of the terminal; with fewer for the last line, some of ours are left out."""

PS_HEADS = ("run", "for", "nodes", "ranks", "node", "attempt", "state", "pid", "program")
PS_LEFT_OUT_FIRST = ("attempt", "node")
LEAST_OF_PROGRAM = 20


class ShownNode(Struct, frozen=True):
    """One node as shown."""

    node_rank: int
    host: str
    pid: int
    attempt: int
    state: str
    ranks: tuple[ShownRank, ...]


class JobStatus(Struct, frozen=True):
    """What ``clusterrun status --json`` prints."""

    run_id: str
    program: str
    number_of_nodes: int
    number_of_ranks: int
    running_for: float
    nodes: tuple[ShownNode, ...]
    missing: tuple[MissingNode, ...]
    waiting: tuple[str, ...]
    """Hosts without a place."""
    behind: int | None
    """The rank that has been quiet for much longer than the others; None if none has."""
    suspension: str = ""
    """Which ranks have not saved, in words; "": no suspension is agreed on."""


def shown_nodes(first: JobLook, second: JobLook | None, seconds: float) -> tuple[ShownNode, ...]:
    """Return the nodes of the later look, with their speed between the two, ``seconds`` apart."""
    before = {
        (rank.rank, rank.pid): rank
        for node in (first.of(NodeRanks) if second else ())
        for rank in node.ranks
    }
    return tuple(_shown(node, before, seconds) for node in (second or first).of(NodeRanks))


def _shown(
    node: NodeRanks, before: Mapping[tuple[int, int], RankState], seconds: float
) -> ShownNode:
    ranks = (shown_rank(rank, before.get((rank.rank, rank.pid)), seconds) for rank in node.ranks)
    return ShownNode(node.node_rank, node.host, node.pid, node.attempt, node.state, tuple(ranks))


def rank_behind(nodes: Iterable[ShownNode]) -> int | None:
    """Return the rank that has been quiet for much longer than the others."""
    known = sorted(
        (rank.state.quiet_for, rank.state.rank)
        for node in nodes
        for rank in node.ranks
        if rank.state.quiet_for is not None
    )
    if len(known) < 2:
        return None
    *others, (longest, rank) = known
    usual = median(quiet for quiet, _ in others)
    return rank if longest > max(SECONDS_BEHIND, TIMES_BEHIND * usual) else None


def status_text(status: JobStatus, width: int | None) -> str:
    """Return the table of all ranks, at most ``width`` columns wide; None: as wide as it is."""
    attempts = {node.attempt for node in status.nodes}
    states = dict.fromkeys(node.state for node in status.nodes)
    head = (
        f"run {status.run_id}: {status.program},"
        f" attempt {', '.join(map(str, sorted(attempts)))}, {', '.join(states)},"
        f" {counted(status.number_of_nodes, 'node')}, {counted(status.number_of_ranks, 'rank')},"
        f" for {duration(status.running_for)}"
    )
    cells = cells_of(status.nodes)
    heads = shown_heads(HEADS, cells)
    lines = [head, *narrowed(cells, heads, width, LEFT_OUT_FIRST, LEAST_OF_LAST_LINE)]
    if status.behind is not None:
        lines.append(f"rank {status.behind} is behind: it has printed nothing for longest")
    lines += [f"node {node.node_rank} ({node.host}) {node.why}" for node in status.missing]
    if status.waiting:
        lines.append(f"without a place, waiting: {', '.join(status.waiting)}")
    if status.suspension:
        lines.append(status.suspension)
    return "\n".join(lines)


def cells_of(nodes: Iterable[ShownNode]) -> list[dict[str, str]]:
    """Return the cells of all ranks, by the heads of their columns."""
    return [rank_cells(node.node_rank, node.host, rank) for node in nodes for rank in node.ranks]


def ps_text(rows: Iterable[Sequence[str]], width: int | None) -> str:
    """Return the table of this host's jobs, at most ``width`` columns wide; None: as wide as it is."""
    cells = [dict(zip(PS_HEADS, row, strict=True)) for row in rows]
    if width is not None:
        # A path is known by its end.
        cells = [{**each, "program": each["program"].rpartition("/")[2]} for each in cells]
    return "\n".join(narrowed(cells, PS_HEADS, width, PS_LEFT_OUT_FIRST, LEAST_OF_PROGRAM))
