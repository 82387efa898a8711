"""Which rank is slow, in words and as a table: for ``clusterrun slow``."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import assert_never

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.job.job import MAIN
from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.queries import MissingNode
from clusterrun.policy.samples import Activity, WhyNoStacks
from clusterrun.policy.slow import (
    AloneRank,
    DataBound,
    DifferingRanks,
    NoCpuCause,
    NoMeetingPlace,
    NoneDiffers,
    NoneSlow,
    NotSampled,
    OvercommittedCpus,
    ProgramVerdict,
    SampledNode,
    SampledRank,
    SlowRanks,
    SlowVerdict,
    StarvedRanks,
    StoppedRanks,
    UnclearRanks,
    WaitBound,
    ranks_of,
)
from clusterrun.report.tables import NOTHING, table

DOES = {
    Activity.DATA: "reading data",
    Activity.SAVE: "saving or loading a checkpoint",
    Activity.COMPUTE: "computing",
    Activity.OPTIMIZER: "in the optimizer",
    Activity.OTHER: "outside torch",
    Activity.BACKWARD: "in backward",
    Activity.WAIT: "waiting for other ranks",
    Activity.GPU: "waiting for its GPU",
}
"""What a rank spends its time with."""

WAIT_FOR = {"cpu": "a CPU", "io": "a disk", "memory": "memory"}
"""By the name of a pressure."""

IN_STATE = {
    "R": "running or ready to run",
    "D": "waiting for a disk or a device",
    "S": "asleep",
    "t": "held by a debugger",
}
"""By the kernel's letter; all others are functions of the kernel."""

_PREFIXES = ("do_sys_", "do_", "__", "sys_", "ksys_")

MOST_REASONS = 10
"""Ranks without stacks that are named."""

MOST_HOSTS = 4
"""That are named in one place."""

WAIT, DATA, COMPUTE, SAVE, OTHER = "wait", "data", "compute", "save", "other"
COLUMNS = {
    WAIT: (Activity.WAIT, Activity.GPU),
    DATA: (Activity.DATA,),
    COMPUTE: (Activity.COMPUTE, Activity.OPTIMIZER),
    SAVE: (Activity.SAVE,),
    OTHER: (Activity.OTHER,),
}
GPU_HEADS = ("GPU use", "temperature", "power")
HEADS = ("rank", "host", *COLUMNS, "CPU", "no CPU", *GPU_HEADS)

Named = Callable[[Iterable[int]], str]


class ShownSlowRank(Struct, frozen=True):
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


class SlowReport(Struct, frozen=True):
    """What ``clusterrun slow --json`` prints."""

    run_id: str
    summary: str
    """The sentences above the table."""
    verdicts: tuple[ProgramVerdict, ...]
    ranks: tuple[ShownSlowRank, ...]
    missing: tuple[MissingNode, ...]

    @classmethod
    def of(
        cls,
        run_id: str,
        programs: Sequence[NumberedProgram],
        nodes: Sequence[SampledNode],
        verdicts: tuple[ProgramVerdict, ...],
        missing: tuple[MissingNode, ...],
    ) -> "SlowReport":
        ranks = ranks_of(nodes)
        return cls(
            run_id,
            "\n".join(_sentences(ranks, programs, verdicts, missing)),
            verdicts,
            tuple(map(_shown, ranks)),
            missing,
        )


def slow_text(
    programs: Sequence[NumberedProgram], nodes: Sequence[SampledNode], report: SlowReport
) -> str:
    """Return the sentences and the table below them."""
    ranks = ranks_of(nodes)
    rows = [
        _cells(own, shown, programs)
        for own, shown in zip(ranks, report.ranks, strict=True)
        if own.own.windows
    ]
    known = {SAVE, *COLUMNS, *GPU_HEADS}
    return "\n".join([report.summary, *(table(HEADS, rows, known) if rows else [])])


# Sentences.


def verdict_text(verdict: SlowVerdict, named: Named, *, several_hosts: bool) -> str:
    """Return the sentences of one verdict.

    Args:
        verdict: what was found.
        named: names workers by their numbers in the job.
        several_hosts: whether the host of a rank is named.

    """
    match verdict:
        case StoppedRanks(ranks, _, pids):
            who = _with_hosts(named, verdict, several_hosts=several_hosts)
            are = "are" if len(ranks) > 1 else "is"
            return f"{who} {are} stopped (kill -CONT {' '.join(map(str, pids))})"
        case StarvedRanks():
            return _starved(verdict, _with_hosts(named, verdict, several_hosts=several_hosts))
        case SlowRanks():
            return _slow(verdict, _with_hosts(named, verdict, several_hosts=several_hosts))
        case DifferingRanks(ranks, _, state, share):
            who = _with_hosts(named, verdict, several_hosts=several_hosts)
            differ = "differ" if len(ranks) > 1 else "differs"
            others = f"the others {_percent(share.others)}"
            return f"{who} {differ}: {_percent(share.own)} {_in_state(state)}, {others}"
        case UnclearRanks(windows):
            seen = ", then ".join(map(named, windows))
            return f"not clear: first {seen}; --seconds 30 samples longer"
        case OvercommittedCpus(share, hosts, by_others):
            text = (
                f"overcommitted: ranks lack a CPU {_percent(share)} of the time; differences below"
                " 30 points mean nothing"
            )
            return f"{text}; {_others_use(hosts, by_others)}" if hosts else text
        case DataBound(share):
            return f"all ranks read data {_percent(share)} of the time: more DataLoader workers"
        case WaitBound(share, place):
            where = f" ({place})" if place else ""
            return (
                f"all ranks wait {_percent(share)}{where}: communication, or a hang:"
                " clusterrun stacks"
            )
        case NoneSlow(least, most, compute, place):
            waits = (
                f"spend {_range(least, most)} at {place}"
                if place
                else f"wait {_range(least, most)}"
            )
            return f"no rank is slow: they {waits}, compute {_percent(compute)}"
        case NoMeetingPlace():
            return (
                "not clear: no rank is seen to wait for others, and there is no line where most of"
                " them are: clusterrun stacks"
            )
        case AloneRank(rank, activities):
            shares = ", ".join(f"{_percent(share)} {DOES[each]}" for each, share in activities)
            return f"{named([rank])} is alone, so there is nothing to compare: it spends {shares}"
        case NoneDiffers():
            return "no rank differs in what its main thread waits for"
        case NotSampled():
            return "no rank was sampled"
        case _:
            assert_never(verdict)


def _slow(slow: SlowRanks, who: str) -> str:
    it, its, spend = (
        ("they", "Their", "They spend") if len(slow.ranks) > 1 else ("it", "Its", "It spends")
    )
    if slow.meeting_place:
        wait = (
            f"the others are {_percent(slow.wait.others)} of the time at {slow.meeting_place},"
            f" {it} {_percent(slow.wait.own)}"
        )
    else:
        wait = f"the others wait {_percent(slow.wait.others)} of the time, {it} {_percent(slow.wait.own)}"
    place = f" ({slow.place})" if slow.place else ""
    text = (
        f"{who} {'are' if len(slow.ranks) > 1 else 'is'} slow: {wait}."
        f" {spend} {_percent(slow.share.own)} {DOES[slow.activity]}{place},"
        f" the others {_percent(slow.share.others)}."
    )
    if slow.loaders_wait_for_disk is not None:
        text += f" {its} DataLoader processes wait for a disk {_percent(slow.loaders_wait_for_disk)} of the time."
    if slow.pressure:
        felt = ", ".join(
            f"for {WAIT_FOR.get(name, name)} {_percent(share)} of the time"
            for name, share in slow.pressure
        )
        text += f" On {slow.hosts[0]}, tasks wait {felt}."
    return text


def _starved(starved: StarvedRanks, who: str) -> str:
    several = len(starved.ranks) > 1
    match starved.cause:
        case NoCpuCause.QUOTA:
            whose, whom = ("their", "them") if several else ("its", "it")
            why = f"{whose} CPU quota throttles {whom} {_percent(starved.cause_share)} of the time"
        case NoCpuCause.OTHERS:
            why = _others_use(starved.hosts, starved.cause_share)
        case NoCpuCause.OVERCOMMITTED:
            why = f"the job has more threads to run on {_some(starved.hosts)} than there are CPUs for it"
        case _:
            assert_never(starved.cause)
    if starved.loaders:
        return f"the DataLoader processes of {who} wait for a CPU: {why}"
    others = (
        "" if starved.share.others is None else f", the others {_percent(starved.share.others)}"
    )
    return (
        f"{who} {'wait' if several else 'waits'} for a CPU {_percent(starved.share.own)} of the time"
        f"{others}: {why}"
    )


def _others_use(hosts: Sequence[str], share: float) -> str:
    return f"other processes use {_percent(share)} of the CPUs on {_some(hosts)}"


def _with_hosts(
    named: Named,
    verdict: SlowRanks | StarvedRanks | DifferingRanks | StoppedRanks,
    *,
    several_hosts: bool,
) -> str:
    who = named(verdict.ranks)
    if isinstance(verdict, SlowRanks) and verdict.is_whole_host:
        return f"{who}, all of {verdict.hosts[0]},"
    return f"{who} ({_some(verdict.hosts)})" if several_hosts else who


def _some(hosts: Iterable[str]) -> str:
    """Return the first few: a job may have a thousand."""
    names = list(dict.fromkeys(hosts))
    more = len(names) - MOST_HOSTS
    return ", ".join([*names[:MOST_HOSTS], *([f"{more} more"] if more > 0 else [])])


def _in_state(state: str) -> str:
    if state in IN_STATE:
        return IN_STATE[state]
    name = state
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return f"in {name}"


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share * 100:.0f} %"


def _range(least: float, most: float) -> str:
    low, high = f"{least * 100:.0f}", f"{most * 100:.0f}"
    return f"{low} %" if low == high else f"{low}-{high} %"


def _sentences(
    ranks: Sequence[SampledRank],
    programs: Sequence[NumberedProgram],
    verdicts: Iterable[ProgramVerdict],
    missing: Iterable[MissingNode],
) -> list[str]:
    named = partial(named_workers, programs)
    several_hosts = len({each.node_rank for each in ranks}) > 1
    return [
        *(_sentence(each, named, several_hosts=several_hosts) for each in verdicts),
        *_reasons(ranks, named),
        *(f"node {node.node_rank} ({node.host}) {node.why}" for node in missing),
    ]


def _sentence(each: ProgramVerdict, named: Named, *, several_hosts: bool) -> str:
    text = verdict_text(each.verdict, named, several_hosts=several_hosts)
    # Such a sentence names no ranks, and so no service.
    is_of_all = isinstance(each.verdict, UnclearRanks | WaitBound)
    return f"{each.program}: {text}" if is_of_all and each.program != MAIN else text


def _reasons(ranks: Sequence[SampledRank], named: Named) -> list[str]:
    """Return why ranks have no stacks, and the cure; equal reasons once."""
    by_reason: dict[str, list[SampledRank]] = {}
    for each in ranks:
        if reason := _reason(each):
            by_reason.setdefault(reason, []).append(each)
    lines = []
    for reason, own in list(by_reason.items())[:MOST_REASONS]:
        hosts = _some(each.host for each in own)
        who = named([each.own.rank for each in own])
        lines.append(reason.format(who=who, hosts=hosts, are="are" if len(own) > 1 else "is"))
    if len(by_reason) > MOST_REASONS:
        lines.append(f"{counted(len(by_reason) - MOST_REASONS, 'other reason')}: see --json")
    return lines


def _reason(each: SampledRank) -> str:
    match each.own.why_no_stacks:
        case None:
            return ""
        case WhyNoStacks.MISSING:
            return (
                "no py-spy on {hosts}, on its agent's PATH or beside its Python: pip install py-spy"
                " there, and functions are named"
            )
        case WhyNoStacks.REFUSED:
            return f"py-spy may not read {{who}} ({{hosts}}): {_cure(each.node.ptrace_scope)}"
        case WhyNoStacks.ENDED:
            return "{who} had ended"
        case WhyNoStacks.NOT_PYTHON:
            return "{who} {are} not judged: not a Python process"
        case WhyNoStacks.FAILED:
            said = (each.own.problem or "it printed nothing").replace("{", "{{").replace("}", "}}")
            return f"no stacks of {{who}} ({{hosts}}): py-spy: {said}"
        case _:
            assert_never(each.own.why_no_stacks)


def _cure(ptrace_scope: int | None) -> str:
    """Return what to type so that py-spy may read other processes of the same user."""
    match ptrace_scope:
        case 1 | 2:
            return f"kernel.yama.ptrace_scope is {ptrace_scope}; as root: sysctl kernel.yama.ptrace_scope=0"
        case 3:
            return "kernel.yama.ptrace_scope is 3, which can be changed by a reboot only"
        case _:
            return "in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"


# The table.


def _shown(each: SampledRank) -> ShownSlowRank:
    windows = each.own.windows
    seen = [window for window in windows if window.samples]
    activities = {
        activity: round(fmean(window.activities.get(activity, 0.0) for window in seen), 3)
        for activity in Activity
        if seen and any(activity in window.activities for window in seen)
    }
    throttled = [it.throttled for it in windows if it.throttled is not None]
    return ShownSlowRank(
        each.own.rank,
        each.host,
        each.own.pid,
        activities,
        round(fmean(window.cpu for window in windows), 3) if windows else None,
        round(fmean(window.queue for window in windows), 3) if windows else None,
        round(fmean(throttled), 3) if throttled else None,
        each.own.why_no_stacks,
        each.own.problem,
    )


def _cells(
    each: SampledRank, shown: ShownSlowRank, programs: Iterable[NumberedProgram]
) -> dict[str, str]:
    label = next((name for it in programs if (name := it.label(shown.rank))), str(shown.rank))
    gpus = each.own.gpus
    uses = [gpu.use for gpu in gpus if gpu.use is not None]
    heats = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
    watts = [gpu.power for gpu in gpus if gpu.power is not None]
    return {
        "rank": label,
        "host": shown.host,
        **{
            head: _percent(sum(shown.activities.get(it, 0.0) for it in kinds))
            if shown.activities
            else NOTHING
            for head, kinds in COLUMNS.items()
        },
        "CPU": _percent(shown.cpu),
        "no CPU": _percent(shown.no_cpu),
        "GPU use": f"{fmean(uses):.0f} %" if uses else NOTHING,
        "temperature": f"{max(heats)} C" if heats else NOTHING,
        "power": f"{sum(watts)} W" if watts else NOTHING,
    }
