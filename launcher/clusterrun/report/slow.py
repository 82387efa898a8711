"""Which rank is slow: the sentences of the verdicts, and a table; for ``clusterrun slow``."""

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.notices import listed
from clusterrun.policy.queries import MissingNode, missing_nodes
from clusterrun.policy.samples import Activity, WhyNoStacks
from clusterrun.policy.slow import SampledRank, SlowVerdict, percent
from clusterrun.report.tables import NOTHING, table

MAX_REASONS = 10
"""Why ranks have no stacks: so many reasons are printed."""

COLUMNS = {
    "wait": (Activity.WAIT, Activity.GPU),
    "data": (Activity.DATA,),
    "compute": (Activity.COMPUTE, Activity.OPTIMIZER),
    "save": (Activity.SAVE,),
    "other": (Activity.OTHER,),
}
GPU_HEADS = ("GPU use", "temperature", "power")
HEADS = ("rank", "host", *COLUMNS, "CPU", "no CPU", *GPU_HEADS)

REASONS = {
    WhyNoStacks.MISSING: (
        "no py-spy on {hosts}, neither on its agent's PATH nor beside its Python; to see"
        " function names, run pip install py-spy there"
    ),
    WhyNoStacks.REFUSED: "py-spy may not read {who} ({hosts}): {detail}",
    WhyNoStacks.ENDED: "{who} had ended",
    WhyNoStacks.NOT_PYTHON: "{who} {are} not judged: not a Python process",
    WhyNoStacks.FAILED: "no stacks of {who} ({hosts}): py-spy: {detail}",
}

CONTAINER = "in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
CURES = {
    1: "kernel.yama.ptrace_scope is 1; as root: sysctl kernel.yama.ptrace_scope=0",
    2: "kernel.yama.ptrace_scope is 2; as root: sysctl kernel.yama.ptrace_scope=0",
    3: "kernel.yama.ptrace_scope is 3, which can be changed by a reboot only",
}
"""Why py-spy may not read other processes of the same user, by ptrace_scope."""


class SlowRankView(Struct, frozen=True):
    """One rank as shown: shares of the time of its main thread, over all windows."""

    rank: int
    host: str
    pid: int
    activities: dict[Activity, float]
    """Empty if it has no stacks."""
    cpu: float | None
    """On a CPU; None: it was not sampled."""
    no_cpu: float | None
    """Ready to run, without a CPU."""
    throttled: float | None
    """By a CPU quota; None: it has none."""
    why_no_stacks: WhyNoStacks | None
    problem: str | None

    @classmethod
    def of(cls, each: SampledRank) -> "SlowRankView":
        windows, own = each.own.windows, each.own
        seen = [window.activities for window in windows if window.samples]
        known = [it for it in Activity if any(it in activities for activities in seen)]
        means = {it: round(fmean(each.get(it, 0.0) for each in seen), 3) for it in known}
        cpu, no_cpu = _mean([it.cpu for it in windows]), _mean([it.queue for it in windows])
        throttled = _mean([it.throttled for it in windows if it.throttled is not None])
        facts = own.why_no_stacks, own.problem
        return cls(own.rank, each.host, own.pid, means, cpu, no_cpu, throttled, *facts)


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
        shown = tuple(map(SlowRankView.of, ranks))
        return cls(run_id, "\n".join(lines), verdicts, shown, missing)


def slow_text(
    programs: Sequence[NumberedProgram], ranks: Sequence[SampledRank], report: SlowReport
) -> str:
    """Return the sentences and the table below them."""
    rows = [
        _cells(own, shown, programs)
        for own, shown in zip(ranks, report.ranks, strict=True)
        if own.own.windows
    ]
    shown = table(HEADS, rows, {*COLUMNS, *GPU_HEADS}) if rows else []
    return "\n".join([report.summary, *shown])


def _cells(
    each: SampledRank, shown: SlowRankView, programs: Sequence[NumberedProgram]
) -> dict[str, str]:
    label = next((name for it in programs if (name := it.label(shown.rank))), str(shown.rank))
    uses = [gpu.use for gpu in each.own.gpus if gpu.use is not None]
    heats = [gpu.temperature for gpu in each.own.gpus if gpu.temperature is not None]
    watts = [gpu.power for gpu in each.own.gpus if gpu.power is not None]
    shares = {
        head: sum(shown.activities.get(it, 0.0) for it in kinds) if shown.activities else None
        for head, kinds in COLUMNS.items()
    }
    shares |= {"CPU": shown.cpu, "no CPU": shown.no_cpu}
    return {
        "rank": label,
        "host": shown.host,
        **{head: NOTHING if it is None else percent(it) for head, it in shares.items()},
        "GPU use": f"{fmean(uses):.0f} %" if uses else NOTHING,
        "temperature": f"{max(heats)} C" if heats else NOTHING,
        "power": f"{sum(watts)} W" if watts else NOTHING,
    }


def _reasons(ranks: Sequence[SampledRank], programs: Sequence[NumberedProgram]) -> list[str]:
    """Return why ranks have no stacks, and the cure; equal reasons once."""
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
    """Return what py-spy said, or what to type so that it may read other processes of the same user."""
    if why is WhyNoStacks.FAILED:
        return each.own.problem or "it printed nothing"
    return CURES.get(each.node.ptrace_scope or 0, CONTAINER) if why is WhyNoStacks.REFUSED else ""
