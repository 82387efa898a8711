"""The verdicts on slow ranks as text and as JSON, for ``clusterrun slow``."""

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.notices import listed
from clusterrun.policy.queries import MissingNode, missing_nodes
from clusterrun.policy.samples import Activity, WhyNoStacks
from clusterrun.policy.slow import SampledRank, SlowVerdict, percent
from clusterrun.report.ranks import GPU_HEADS, gpu_cells, rank_label
from clusterrun.report.tables import EMPTY, table

MAX_REASONS = 10
"""Printed reasons why ranks have no stacks."""

COLUMNS = {
    "wait": (Activity.WAIT, Activity.GPU),
    "data": (Activity.DATA,),
    "compute": (Activity.COMPUTE, Activity.OPTIMIZER),
    "save": (Activity.SAVE,),
    "other": (Activity.OTHER,),
}
HEADS = ("rank", "host", *COLUMNS, "CPU", "no CPU", "GPU use", "temperature", "power")

REASONS = {
    WhyNoStacks.MISSING: (
        "no py-spy on {hosts}, neither on its agent's PATH nor next to its Python; to see function"
        " names, run pip install py-spy there"
    ),
    WhyNoStacks.REFUSED: "py-spy may not read {who} ({hosts}): {detail}",
    WhyNoStacks.ENDED: "{who} had ended",
    WhyNoStacks.NOT_PYTHON: "{who} {are} not analyzed: not a Python process",
    WhyNoStacks.FAILED: "no stacks of {who} ({hosts}): py-spy: {detail}",
}

CONTAINER = "in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
CURES = {
    1: "kernel.yama.ptrace_scope is 1; as root: sysctl kernel.yama.ptrace_scope=0",
    2: "kernel.yama.ptrace_scope is 2; as root: sysctl kernel.yama.ptrace_scope=0",
    3: "kernel.yama.ptrace_scope is 3, which can be changed by a reboot only",
}
"""Why py-spy is not allowed to read other processes of the same user, by ptrace_scope."""


class SlowRankView(Struct, frozen=True):
    """A rank in ``slow --json``: shares of the time of its main thread, over all windows."""

    rank: int
    host: str
    pid: int
    activities: dict[Activity, float]
    """Empty without stacks."""
    cpu: float | None
    """On a CPU; None if it was not sampled."""
    no_cpu: float | None
    """Runnable, but without a CPU."""
    throttled: float | None
    """Throttled by a CPU quota; None without a quota."""
    why_no_stacks: WhyNoStacks | None
    problem: str | None

    @classmethod
    def of(cls, each: SampledRank) -> "SlowRankView":
        windows, own = each.own.windows, each.own
        seen = [window.activities for window in windows if window.samples]
        known = [it for it in Activity if any(it in activities for activities in seen)]
        return cls(
            rank=own.rank,
            host=each.host,
            pid=own.pid,
            activities={it: round(fmean(each.get(it, 0.0) for each in seen), 3) for it in known},
            cpu=_mean([it.cpu for it in windows]),
            no_cpu=_mean([it.queue for it in windows]),
            throttled=_mean([it.throttled for it in windows if it.throttled is not None]),
            why_no_stacks=own.why_no_stacks,
            problem=own.problem,
        )


def _mean(shares: Sequence[float]) -> float | None:
    return round(fmean(shares), 3) if shares else None


class SlowReport(Struct, frozen=True):
    """What ``clusterrun slow --json`` prints."""

    run_id: str
    summary: str
    """The sentences above the table."""
    verdicts: tuple[SlowVerdict, ...]
    ranks: tuple[SlowRankView, ...]
    missing: tuple[MissingNode, ...]

    @classmethod
    def of(
        cls,
        run_id: str,
        programs: Sequence[NumberedProgram],
        ranks: Sequence[SampledRank],
        verdicts: tuple[SlowVerdict, ...],
        missing: tuple[MissingNode, ...],
    ) -> "SlowReport":
        lines = [each.sentence for each in verdicts]
        lines += [*_reasons(ranks, programs), *missing_nodes(missing)]
        views = tuple(map(SlowRankView.of, ranks))
        return cls(run_id, "\n".join(lines), verdicts, views, missing)


def slow_text(
    programs: Sequence[NumberedProgram], ranks: Sequence[SampledRank], report: SlowReport
) -> str:
    """Return the verdicts, and a table of the ranks."""
    rows = [
        _cells(sampled, view, programs)
        for sampled, view in zip(ranks, report.ranks, strict=True)
        if sampled.own.windows
    ]
    lines = table(HEADS, rows, {*COLUMNS, *GPU_HEADS}) if rows else []
    return "\n".join([report.summary, *lines])


def _cells(
    sampled: SampledRank, view: SlowRankView, programs: Sequence[NumberedProgram]
) -> dict[str, str]:
    shares = {
        head: sum(view.activities.get(it, 0.0) for it in kinds) if view.activities else None
        for head, kinds in COLUMNS.items()
    }
    shares |= {"CPU": view.cpu, "no CPU": view.no_cpu}
    return {
        "rank": rank_label(view.rank, programs),
        "host": view.host,
        **{head: EMPTY if it is None else percent(it) for head, it in shares.items()},
        **gpu_cells(sampled.own.gpus),
    }


def _reasons(ranks: Sequence[SampledRank], programs: Sequence[NumberedProgram]) -> list[str]:
    """Return why ranks have no stacks and how to fix it, one line for each reason."""
    by_reason: dict[tuple[WhyNoStacks, str], list[SampledRank]] = {}
    for each in ranks:
        if (why := each.own.why_no_stacks) is not None:
            by_reason.setdefault((why, _detail(why, each)), []).append(each)
    lines = [
        REASONS[why].format(
            who=named_workers(programs, [each.own.rank for each in own]),
            hosts=listed(each.host for each in own),
            are="are" if len(own) > 1 else "is",
            detail=detail,
        )
        for (why, detail), own in list(by_reason.items())[:MAX_REASONS]
    ]
    more = len(by_reason) - MAX_REASONS
    return [*lines, *([f"{counted(more, 'other reason')}: see --json"] if more > 0 else [])]


def _detail(why: WhyNoStacks, each: SampledRank) -> str:
    """Return py-spy's error, or what allows it to read other processes of the same user."""
    if why is WhyNoStacks.FAILED:
        return each.own.problem or "it printed nothing"
    return CURES.get(each.node.ptrace_scope or 0, CONTAINER) if why is WhyNoStacks.REFUSED else ""
