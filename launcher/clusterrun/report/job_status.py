"""Running jobs as tables for people and as types for JSON: ``clusterrun ps`` and ``status``."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from clusterrun.domain.counts import counted
from clusterrun.domain.looks import JobLook, MissingNode, NodeRanks, RankState
from clusterrun.report.worker_table import aligned

SECONDS_BEHIND = 5.0
"""A rank that has printed nothing for longer, and for much longer than the others, is behind."""

TIMES_BEHIND = 3.0
"""How much longer."""

HEADS = (
    *("rank", "node", "host", "state", "pid", "GPU", "CPUs", "CPU use", "memory", "quiet for"),
    "last line",
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class ShownRank(Struct, frozen=True):
    """One rank as shown."""

    state: RankState
    cpu_use: float | None
    """CPUs in use, by two looks; None if one is missing."""


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


def shown_nodes(first: JobLook, second: JobLook | None, seconds: float) -> tuple[ShownNode, ...]:
    """Return the nodes of the later look, with the CPU use between the two, ``seconds`` apart."""
    before = {
        (rank.rank, rank.pid): rank.cpu_seconds
        for node in (first.of(NodeRanks) if second else ())
        for rank in node.ranks
    }
    return tuple(_shown(node, before, seconds) for node in (second or first).of(NodeRanks))


def _shown(node: NodeRanks, before: Mapping[tuple[int, int], float], seconds: float) -> ShownNode:
    ranks = []
    for rank in node.ranks:
        earlier = before.get((rank.rank, rank.pid))
        use = None
        if earlier is not None and rank.pid and seconds > 0:
            use = round(max(0.0, rank.cpu_seconds - earlier) / seconds, 2)
        ranks.append(ShownRank(rank, use))
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
    """Return the table of all ranks; ``width`` cuts the last lines, None does not."""
    attempts = {node.attempt for node in status.nodes}
    states = dict.fromkeys(node.state for node in status.nodes)
    head = (
        f"run {status.run_id}: {status.program},"
        f" attempt {', '.join(map(str, sorted(attempts)))}, {', '.join(states)},"
        f" {counted(status.number_of_nodes, 'node')}, {counted(status.number_of_ranks, 'rank')},"
        f" for {duration(status.running_for)}"
    )
    cells = [rank_cells(node, rank) for node in status.nodes for rank in node.ranks]
    rows = [tuple(row[name] for name in HEADS) for row in cells]
    lines = [head, *_cut(aligned([HEADS, *rows]), width)]
    if status.behind is not None:
        lines.append(f"rank {status.behind} is behind: it has printed nothing for longest")
    lines += [f"node {node.node_rank} ({node.host}) {node.why}" for node in status.missing]
    if status.waiting:
        lines.append(f"without a place, waiting: {', '.join(status.waiting)}")
    return "\n".join(lines)


def ps_text(rows: Iterable[Sequence[str]]) -> str:
    """Return the table of this host's jobs."""
    heads = ("run", "for", "nodes", "ranks", "node", "attempt", "state", "pid", "program")
    return "\n".join(aligned([heads, *rows]))


def duration(seconds: float) -> str:
    """Return "7 s", "1:02" (minutes), "3:01:02" or "2 days 3:01:02"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    days, hours = divmod(hours, 24)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    if not days and not hours:
        return clock.lstrip("0")
    return f"{counted(days, 'day')} {hours}:{clock}" if days else f"{hours}:{clock}"


def rank_cells(node: ShownNode, shown: ShownRank) -> dict[str, str]:
    """Return the cells of a rank by the heads of their columns."""
    rank = shown.state
    return {
        "rank": str(rank.rank),
        "node": str(node.node_rank),
        "host": node.host,
        "state": rank.state,
        "pid": str(rank.pid or "-"),
        "GPU": rank.gpus or "-",
        "CPUs": rank.cpus or "not bound",
        "CPU use": "-" if shown.cpu_use is None else f"{shown.cpu_use:.0%}".replace("%", " %"),
        "memory": size(rank.memory) if rank.memory else "-",
        "quiet for": "-" if rank.quiet_for is None else duration(rank.quiet_for),
        "last line": rank.last_line,
    }


def size(count: float) -> str:
    """Return a number of bytes as "512 B", "1.5 GiB", "12 GiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if count >= 10 else f"{count:.1f} {_UNITS[unit]}"


def _cut(lines: list[str], width: int | None) -> list[str]:
    if width is None:
        return lines
    return [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
