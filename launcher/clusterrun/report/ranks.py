"""Running jobs: tables for people, and the status as JSON; for ``ps`` and ``status``."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Self

from msgspec import UNSET, Struct, UnsetType

from clusterrun.bounds import counted
from clusterrun.machine.machine import GpuState
from clusterrun.network.requests import JOINING, Description
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.answers import NodeRanks, RankState, read
from clusterrun.policy.queries import Answers, MissingNode, missing_nodes
from clusterrun.report.tables import NOTHING, duration, size, table

SECONDS_BEHIND = 5.0
"""A rank that has printed nothing for longer, and for much longer than the others, is behind."""

TIMES_BEHIND = 3.0
"""How much longer."""

GPU_HEADS = ("GPU use", "GPU memory", "temperature", "power")
"""Columns that are left out if no GPU has a figure there."""

STATUS_HEADS = (
    *("rank", "node", "host", "state", "pid", "GPU", "CPUs", "CPU use", "memory"),
    *GPU_HEADS,
    *("lines/s", "quiet for", "last line"),
)
LEFT_OUT_FIRST = (
    *("memory", "lines/s", "temperature", "power", "GPU memory"),
    *("CPUs", "GPU", "node", "pid"),
)
MIN_OF_LAST_LINE = 30
"""Columns of the terminal; with fewer for the last line, some of ours are left out."""

PS_HEADS = ("run", "for", "nodes", "ranks", "node", "attempt", "state", "pid", "program")
PS_LEFT_OUT_FIRST = ("attempt", "node")
MIN_OF_PROGRAM = 20


class RankView(Struct, frozen=True):
    """One rank as shown."""

    state: RankState
    cpu_use: float | None
    """CPUs in use, by two answers; None if one is missing."""
    lines_per_second: float | None = None
    """Printed, by two answers; None if one is missing, or its output is not seen."""


class NodeView(Struct, frozen=True):
    """One node as shown."""

    node_rank: int
    host: str
    pid: int
    attempt: int
    state: str
    ranks: tuple[RankView, ...]


class JobStatus(Struct, frozen=True, kw_only=True):
    """What ``clusterrun status --json`` prints."""

    run_id: str
    program: str
    number_of_nodes: int
    number_of_ranks: int
    programs: tuple[NumberedProgram, ...] | UnsetType = UNSET
    """Of a job with services: ``rank`` is the number of a worker in the job."""
    running_for: float
    nodes: tuple[NodeView, ...]
    missing: tuple[MissingNode, ...]
    waiting: tuple[str, ...]
    """Hosts without a place."""
    behind: int | None
    """The rank that has been quiet for much longer than the others; None if none has."""
    suspension: str
    """Which ranks have not saved, in words; "": no suspension is agreed on."""

    @classmethod
    def of(
        cls, known: Description, first: Answers, second: Answers | None = None, seconds: float = 0.0
    ) -> Self:
        """Return the status by the later answers; speeds are those between the two, ``seconds`` apart."""
        last = second or first
        earlier = read(first, NodeRanks)[0] if second and seconds > 0 else ()
        before = {(rank.rank, rank.pid): rank for _, node in earlier for rank in node.ranks}
        found, missing = read(last, NodeRanks)
        nodes = tuple(
            NodeView(
                answer.node_rank,
                answer.host,
                node.pid,
                node.attempt,
                node.state,
                tuple(
                    _shown(rank, before.get((rank.rank, rank.pid)), seconds) for rank in node.ranks
                ),
            )
            for answer, node in found
        )
        return cls(
            run_id=known.run_id,
            program=known.program,
            number_of_nodes=known.nodes,
            number_of_ranks=known.ranks,
            programs=known.programs,
            running_for=known.running_for,
            nodes=nodes,
            missing=missing,
            waiting=last.end.waiting,
            # A service may have nothing to print.
            behind=_rank_behind(
                rank.state
                for node in nodes
                for rank in node.ranks
                if not known.programs or rank.state.rank < known.ranks
            ),
            suspension=last.end.suspension,
        )


def _shown(now: RankState, before: RankState | None, seconds: float) -> RankView:
    """Return a rank with its speed since the earlier look; None: the process is not in that one."""
    if before is None or not now.pid:
        return RankView(now, None)
    use = round(max(0.0, now.cpu_seconds - before.cpu_seconds) / seconds, 2)
    lines = round(max(0, now.lines - before.lines) / seconds, 1)
    return RankView(now, use, None if now.quiet_for is None else lines)


def _rank_behind(ranks: Iterable[RankState]) -> int | None:
    known = sorted((it.quiet_for, it.rank) for it in ranks if it.quiet_for is not None)
    if len(known) < 2:
        return None
    *others, (longest, rank) = known
    usual = median(quiet for quiet, _ in others)
    return rank if longest > max(SECONDS_BEHIND, TIMES_BEHIND * usual) else None


def ps_text(agents: Iterable[Description], width: int | None) -> str:
    """Return the table of this host's jobs, at most ``width`` columns wide; None: as wide as it is."""
    rows = [
        {
            "run": agent.run_id,
            "for": duration(agent.running_for),
            "nodes": str(agent.nodes),
            # An agent that waits for other nodes does not know its place yet.
            "ranks": NOTHING if agent.state == JOINING else str(agent.ranks),
            "node": NOTHING if agent.state == JOINING else str(agent.node_rank),
            "attempt": NOTHING if agent.state == JOINING else str(agent.attempt),
            "state": agent.state,
            "pid": str(agent.pid),
            # A path is known by its end.
            "program": agent.program if width is None else agent.program.rpartition("/")[2],
        }
        for agent in agents
    ]
    return "\n".join(_narrowed(PS_HEADS, rows, width, PS_LEFT_OUT_FIRST, MIN_OF_PROGRAM))


def status_text(status: JobStatus, width: int | None) -> str:
    """Return the table of all ranks, at most ``width`` columns wide; None: as wide as it is.

    What is unusual is above it: below, watch(1) would cut it off.
    """
    attempts = sorted({node.attempt for node in status.nodes})
    states = dict.fromkeys(node.state for node in status.nodes)
    head = (
        f"run {status.run_id}: {status.program},"
        f" attempt {', '.join(map(str, attempts))}, {', '.join(states)},"
        f" {counted(status.number_of_nodes, 'node')}, {counted(status.number_of_ranks, 'rank')},"
        f" for {duration(status.running_for)}"
    )
    lines = [head]
    if status.behind is not None:
        lines.append(f"rank {status.behind} is behind: it has gone longest without printing")
    lines += missing_nodes(status.missing)
    if status.waiting:
        lines.append(f"without a place, waiting: {', '.join(status.waiting)}")
    if status.suspension:
        lines.append(status.suspension)
    programs = status.programs or ()
    rows = [_cells(node, rank, programs) for node in status.nodes for rank in node.ranks]
    table = _narrowed(STATUS_HEADS, rows, width, LEFT_OUT_FIRST, MIN_OF_LAST_LINE)
    return "\n".join([*lines, *table])


def _cells(node: NodeView, shown: RankView, programs: Iterable[NumberedProgram]) -> dict[str, str]:
    """Return the cells of a rank by the heads of their columns."""
    rank = shown.state
    return {
        "rank": next((name for it in programs if (name := it.label(rank.rank))), str(rank.rank)),
        "node": str(node.node_rank),
        "host": node.host,
        "state": rank.state,
        "pid": str(rank.pid or NOTHING),
        "GPU": rank.gpus or NOTHING,
        "CPUs": rank.cpus or "not bound",
        "CPU use": NOTHING if shown.cpu_use is None else f"{shown.cpu_use * 100:.0f} %",
        "memory": size(rank.memory) if rank.memory else NOTHING,
        **_gpu_cells(rank.gpu_states),
        "lines/s": _rate(shown.lines_per_second),
        "quiet for": NOTHING if rank.quiet_for is None else duration(rank.quiet_for),
        "last line": rank.last_line,
    }


def _gpu_cells(gpus: Sequence[GpuState]) -> dict[str, str]:
    """Return the cells of a rank's GPUs together: mean use, sum of memory and power, most heat."""
    uses = [gpu.use for gpu in gpus if gpu.use is not None]
    used = [gpu.memory for gpu in gpus if gpu.memory is not None]
    heats = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    return {
        "GPU use": f"{sum(uses) / len(uses):.0f} %" if uses else NOTHING,
        "GPU memory": size(sum(used)) if used else NOTHING,
        "temperature": f"{max(heats)} C" if heats else NOTHING,
        "power": f"{sum(watts)} W" if watts else NOTHING,
    }


def _rate(lines: float | None) -> str:
    if lines is None:
        return NOTHING
    return f"{lines:.1f}" if 0 < lines < 10 else f"{lines:.0f}"


def _narrowed(
    heads: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    width: int | None,
    left_out_first: Iterable[str],
    least: int,
) -> list[str]:
    """Return the table in at most ``width`` columns of a terminal; None: as wide as it is.

    Columns of ``left_out_first`` are left out until the last one has ``least`` columns, or none is
    left; what is longer is cut.
    """
    left_out = iter(left_out_first)
    while True:
        lines = table(heads, rows, GPU_HEADS)
        if width is None:
            return lines
        before = lines[0].rfind(heads[-1])
        if before + least <= width or (head := next(left_out, None)) is None:
            return [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
        heads = [each for each in heads if each != head]
