"""Running jobs as tables and as JSON, for ``clusterrun ps`` and ``status``."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Self

from msgspec import UNSET, Struct, UnsetType

from clusterrun.bounds import counted
from clusterrun.machine.machine import GpuState
from clusterrun.network.requests import JOINING, Description
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.answers import NodeRanks, RankState, decode_answers
from clusterrun.policy.queries import Answers, MissingNode, missing_nodes
from clusterrun.report.tables import EMPTY, duration, size, table

SECONDS_BEHIND = 5.0
TIMES_BEHIND = 3.0
"""A rank is behind if it has been quiet for more than ``SECONDS_BEHIND``, and for more than this many
times the median of the others."""

GPU_HEADS = ("GPU use", "GPU memory", "temperature", "power")
"""Columns that are shown if a GPU has a figure there."""

STATUS_HEADS = (
    *("rank", "node", "host", "state", "pid", "GPU", "CPUs", "CPU use", "memory"),
    *GPU_HEADS,
    *("lines/s", "quiet for", "last line"),
)
STATUS_HIDDEN_FIRST = (
    *("memory", "lines/s", "temperature", "power", "GPU memory"),
    *("CPUs", "GPU", "node", "pid"),
)
MIN_LAST_LINE_WIDTH = 30
"""If the last line has less width, other columns are hidden."""

PS_HEADS = ("run", "for", "nodes", "ranks", "node", "attempt", "state", "pid", "program")
PS_HIDDEN_FIRST = ("attempt", "node")
MIN_PROGRAM_WIDTH = 20


class RankView(Struct, frozen=True):
    """A rank in ``status --json``."""

    state: RankState
    cpu_use: float | None
    """CPUs in use between two answers; None if one is missing."""
    lines_per_second: float | None = None
    """Lines printed between two answers; None if one is missing or the output is not captured."""


class NodeView(Struct, frozen=True):
    """A node in ``status --json``."""

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
    """Set if the job has services; ``rank`` is then the number of a worker in the job."""
    running_for: float
    nodes: tuple[NodeView, ...]
    missing: tuple[MissingNode, ...]
    waiting: tuple[str, ...]
    """The hosts of spare nodes."""
    behind: int | None
    """The rank that has been quiet for much longer than the others."""
    suspension: str
    """The ranks that have not saved, in words; "" if no suspension is in progress."""

    @classmethod
    def of(
        cls, known: Description, first: Answers, second: Answers | None = None, seconds: float = 0.0
    ) -> Self:
        """Return the status by the last answers, and rates by both, which are ``seconds`` apart."""
        last = second or first
        earlier = decode_answers(first, NodeRanks)[0] if second and seconds > 0 else ()
        before = {(rank.rank, rank.pid): rank for _, node in earlier for rank in node.ranks}
        found, missing = decode_answers(last, NodeRanks)
        nodes = tuple(
            NodeView(
                answer.node_rank,
                answer.host,
                node.pid,
                node.attempt,
                node.state,
                tuple(
                    _rank_view(rank, before.get((rank.rank, rank.pid)), seconds)
                    for rank in node.ranks
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


def _rank_view(now: RankState, before: RankState | None, seconds: float) -> RankView:
    """Return a rank with its rates since ``before``, the earlier state of the same process."""
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
    """Return the table of this host's jobs, cut to ``width`` if that is given."""
    rows = [
        {
            "run": agent.run_id,
            "for": duration(agent.running_for),
            "nodes": str(agent.nodes),
            # An agent that waits for other nodes does not know its rank yet.
            "ranks": EMPTY if agent.state == JOINING else str(agent.ranks),
            "node": EMPTY if agent.state == JOINING else str(agent.node_rank),
            "attempt": EMPTY if agent.state == JOINING else str(agent.attempt),
            "state": agent.state,
            "pid": str(agent.pid),
            # The end of a path identifies it.
            "program": agent.program if width is None else agent.program.rpartition("/")[2],
        }
        for agent in agents
    ]
    return "\n".join(_fitted_table(PS_HEADS, rows, width, PS_HIDDEN_FIRST, MIN_PROGRAM_WIDTH))


def status_text(status: JobStatus, width: int | None) -> str:
    """Return the table of all ranks, cut to ``width`` if that is given.

    Problems are above the table, because watch(1) would cut them off below it.
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
        lines.append(f"waiting to join: {', '.join(status.waiting)}")
    if status.suspension:
        lines.append(status.suspension)
    programs = status.programs or ()
    rows = [_cells(node, rank, programs) for node in status.nodes for rank in node.ranks]
    lines += _fitted_table(STATUS_HEADS, rows, width, STATUS_HIDDEN_FIRST, MIN_LAST_LINE_WIDTH)
    return "\n".join(lines)


def _cells(node: NodeView, shown: RankView, programs: Iterable[NumberedProgram]) -> dict[str, str]:
    """Return the cells of a rank by the heads of their columns."""
    rank = shown.state
    return {
        "rank": rank_label(rank.rank, programs),
        "node": str(node.node_rank),
        "host": node.host,
        "state": rank.state,
        "pid": str(rank.pid or EMPTY),
        "GPU": rank.gpus or EMPTY,
        "CPUs": rank.cpus or "not bound",
        "CPU use": EMPTY if shown.cpu_use is None else f"{shown.cpu_use * 100:.0f} %",
        "memory": size(rank.memory) if rank.memory else EMPTY,
        **gpu_cells(rank.gpu_states),
        "lines/s": _rate(shown.lines_per_second),
        "quiet for": EMPTY if rank.quiet_for is None else duration(rank.quiet_for),
        "last line": rank.last_line,
    }


def rank_label(number: int, programs: Iterable[NumberedProgram]) -> str:
    """Return the rank of a worker by its number in the job: "3", or "server 0" in a service."""
    return next((name for each in programs if (name := each.label(number))), str(number))


def gpu_cells(gpus: Sequence[GpuState]) -> dict[str, str]:
    """Return the mean use, the sums of memory and power, and the highest temperature of a rank's GPUs."""
    uses = [gpu.use for gpu in gpus if gpu.use is not None]
    used = [gpu.memory for gpu in gpus if gpu.memory is not None]
    heats = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    return {
        "GPU use": f"{sum(uses) / len(uses):.0f} %" if uses else EMPTY,
        "GPU memory": size(sum(used)) if used else EMPTY,
        "temperature": f"{max(heats)} C" if heats else EMPTY,
        "power": f"{sum(watts)} W" if watts else EMPTY,
    }


def _rate(lines: float | None) -> str:
    if lines is None:
        return EMPTY
    return f"{lines:.1f}" if 0 < lines < 10 else f"{lines:.0f}"


def _fitted_table(
    heads: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    width: int | None,
    hidden_first: Iterable[str],
    min_last_width: int,
) -> list[str]:
    """Return the table, cut to ``width`` if that is given.

    Columns of ``hidden_first`` are hidden until the last column has ``min_last_width``. Lines that are
    still too long are cut.
    """
    hidden = iter(hidden_first)
    while True:
        lines = table(heads, rows, GPU_HEADS)
        if width is None:
            return lines
        before = lines[0].rfind(heads[-1])
        if before + min_last_width <= width or (head := next(hidden, None)) is None:
            return [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
        heads = [each for each in heads if each != head]
