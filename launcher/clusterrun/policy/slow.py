"""Which rank of a job is slow, and why, by samples of the main threads of all ranks.

Ranks that train together wait for the slowest rank in each step. So a rank is slow if it waits less than
the others in each of several windows, and what it does instead is the cause. A rank without a CPU looks
the same in the stacks; the kernel's counters show the difference.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from statistics import fmean, median, median_low
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_share
from clusterrun.job.job import MAIN
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.notices import listed
from clusterrun.policy.samples import (
    Activity,
    NodeSamples,
    RankSamples,
    SampledPlace,
    WhyNoStacks,
    WindowSample,
)

MIN_GAP = 0.20
"""The difference in waiting that makes a rank slow; smaller differences are chance."""

MIN_GAP_ON_FULL_CPUS = 0.30
"""``MIN_GAP`` if ranks lack CPUs."""

FULL_CPUS = 0.10
"""CPUs are full if the median rank is runnable without a CPU for this share of the time."""

MAX_SLOW = 0.5
"""The share of ranks that may be slow."""

MIN_WAIT = 0.10
"""If the median rank waits less, ranks wait for each other at a line that is not known as waiting."""

MAX_CPU_OF_A_STARVED_RANK = 1.5
"""CPU use relative to the other ranks: a rank that uses more has more to do, even on full CPUs."""

MIN_REPORTED = 0.10
"""The smallest share that is reported of throttling, of other processes' CPU use, and of pressure."""

ALL_READ_DATA, ALL_WAIT, MOSTLY = 0.30, 0.80, 0.50

DOES = {
    Activity.DATA: "reading data",
    Activity.SAVE: "saving or loading a checkpoint",
    Activity.OPTIMIZER: "in the optimizer",
    Activity.COMPUTE: "computing",
    Activity.OTHER: "outside torch",
}

IN_STATE = {"R": "running or ready to run", "D": "waiting for a disk or a device", "S": "asleep"}
"""The kernel's one-letter states; other states are functions of the kernel."""

NONE_DIFFERS = "no rank stands out: the main threads of all ranks wait for the same things"
NO_LINE = (
    "inconclusive: no rank seems to wait for others, and most are not at the same line;"
    " try clusterrun stacks"
)

_KERNEL_PREFIX = re.compile(r"\A(?:do_sys_|do_|__|sys_|ksys_)+")


class VerdictKind(Enum):
    """The kind of a finding."""

    STOPPED = "stopped"
    """Ranks are stopped by a signal, for example Ctrl-Z."""
    THROTTLED = "throttled"
    """A CPU quota throttles ranks."""
    NO_CPU = "no CPU"
    """Ranks, or their DataLoader processes, are runnable but get no CPU."""
    SLOW = "slow"
    DIFFERS = "differs"
    """The kernel's states of ranks differ; without stacks, the cause is not known."""
    NOT_CLEAR = "not clear"
    OVERCOMMITTED = "overcommitted"
    """All ranks lack CPUs so often that they differ by chance."""
    ALL_READ_DATA = "all read data"
    ALL_WAIT = "all wait"
    NONE_SLOW = "none slow"
    ALONE = "alone"
    NOT_SAMPLED = "not sampled"


class SlowVerdict(Struct, frozen=True):
    """The finding about the ranks of the main program or of a service."""

    kind: VerdictKind
    sentence: str
    ranks: tuple[int, ...] = ()
    """The ranks that differ from the others, by their numbers in the job."""
    hosts: tuple[str, ...] = ()
    """The hosts of these ranks."""
    activity: Activity | None = None
    """What these ranks do more than the others, or what all ranks do."""
    place: str | None = None
    """The line of the script."""
    program: str = MAIN


class SampledRank(Struct, frozen=True):
    """The samples of a rank, and its node."""

    node_rank: int
    host: str
    node: NodeSamples
    own: RankSamples


def percent(share: float) -> str:
    """Return "51 %"."""
    return f"{share * 100:.0f} %"


def judge(
    ranks: Sequence[SampledRank],
    programs: Collection[NumberedProgram] = (),
    again: Iterable[SampledRank] = (),
) -> tuple[SlowVerdict, ...]:
    """Return the verdict on the main program, then on each service that a verdict is useful for.

    Args:
        ranks: the ranks of all nodes, in order.
        programs: the programs of a job with services.
        again: the rank of ``rank_to_ask_again``, sampled with its child processes.

    """
    several_hosts = len({each.node_rank for each in ranks}) > 1
    everything = NumberedProgram(MAIN, 0, 1 + max((each.own.rank for each in ranks), default=0))
    reads = {each.own.rank: _most_common(each.own.loader_places, Activity.DATA) for each in again}
    verdicts = []
    for program in programs or [everything]:
        own = [each for each in ranks if program.named([each.own.rank])]
        verdict = _Judge(program, several_hosts, reads).verdict(own)
        if program.name == MAIN:
            verdicts.append(verdict)
        # Replicas that serve requests do not wait for each other, so other verdicts say nothing.
        elif verdict.kind in {VerdictKind.NOT_CLEAR, VerdictKind.ALL_WAIT}:
            text = f"{program.name}: {verdict.sentence}"
            verdicts.append(replace(verdict, program=program.name, sentence=text))
        elif verdict.ranks and len(own) > 1 and verdict.kind is not VerdictKind.DIFFERS:
            verdicts.append(replace(verdict, program=program.name))
    return tuple(verdicts)


def rank_to_ask_again(verdicts: Iterable[SlowVerdict]) -> int | None:
    """Return a slow rank whose DataLoader processes must be sampled to find the cause."""
    reads = (it for it in verdicts if (it.kind, it.activity) == (VerdictKind.SLOW, Activity.DATA))
    return next((each.ranks[0] for each in reads), None)


# Figures.

Ranks = Sequence[SampledRank]
Figure = Callable[[WindowSample], float]


class _Compared(NamedTuple):
    """A figure of some ranks and of the others: the mean over the windows of the median."""

    own: float
    others: float

    @property
    def more(self) -> float:
        return self.own - self.others


def _compared(figure: Figure, own: Ranks, others: Ranks) -> _Compared:
    return _Compared(round(_mean(figure, own), 3), round(_mean(figure, others), 3))


def _mean(figure: Figure, ranks: Ranks) -> float:
    """Return the mean over the windows of the median over these ranks."""
    return fmean(median(map(figure, window)) for window in _by_window(ranks))


def _median(figure: Figure, ranks: Ranks) -> float:
    return median(map(figure, _windows(ranks)))


def _windows(ranks: Ranks) -> list[WindowSample]:
    return [window for row in _by_window(ranks) for window in row]


def _by_window(ranks: Ranks) -> Iterable[tuple[WindowSample, ...]]:
    return zip(*(each.own.windows for each in ranks), strict=False)


def _far_below(figure: Figure, ranks: Ranks) -> list[set[int]]:
    """Return for each window the ranks below the largest gap in the sorted shares.

    A window has none if the gap is below ``MIN_GAP``.
    """
    found = []
    for window in _by_window(ranks):
        order = sorted(zip(map(figure, window), (each.own.rank for each in ranks), strict=True))
        most = int(len(order) * MAX_SLOW)
        gaps = [(order[at][0] - order[at - 1][0], at) for at in range(1, most + 1)]
        gap, below = max(gaps, default=(0.0, 0))
        found.append({rank for _, rank in order[:below]} if gap >= MIN_GAP else set())
    return found


def _split(ranks: Ranks, numbers: Collection[int]) -> tuple[list[SampledRank], list[SampledRank]]:
    """Return the ranks with these numbers, and the others."""
    own = [each for each in ranks if each.own.rank in numbers]
    return own, [each for each in ranks if each.own.rank not in numbers]


def _share_of(activity: Activity) -> Figure:
    return lambda window: window.activities.get(activity, 0.0)


def _share_in(state: str) -> Figure:
    return lambda window: window.states.get(state, 0.0)


def _wait(window: WindowSample) -> float:
    return window.activities.get(Activity.WAIT, 0.0) + window.activities.get(Activity.GPU, 0.0)


def _queue(window: WindowSample) -> float:
    return window.queue


class _Judge(Struct, frozen=True):
    """Judges the ranks of one program."""

    program: NumberedProgram
    several_hosts: bool
    """Sentences name the host of a rank."""
    reads: dict[int, str | None]
    """The place where the DataLoader processes of a rank read data, by rank."""

    def verdict(self, ranks: Ranks) -> SlowVerdict:
        excluded = {WhyNoStacks.ENDED, WhyNoStacks.NOT_PYTHON}
        running = [
            each for each in ranks if each.own.windows and each.own.why_no_stacks not in excluded
        ]
        if not running:
            return SlowVerdict(VerdictKind.NOT_SAMPLED, "no rank was sampled")
        if certain := self._stopped(running) or self._throttled(running):
            return certain
        if len(running) == 1:
            who = self.program.named(_numbers(running))
            return SlowVerdict(VerdictKind.ALONE, f"{who} is alone, so there is nothing to compare")
        seen = [each for each in running if all(window.samples for window in each.own.windows)]
        found = self._by_stacks(seen) if len(seen) > 1 else None
        if len(seen) < len(running) and (found is None or not found.ranks):
            found = self._by_states(running) or found
        return found or SlowVerdict(VerdictKind.NONE_SLOW, NONE_DIFFERS)

    def _named(self, ranks: Ranks) -> str:
        """Return "ranks 2-3 (n2)"."""
        hosts = f" ({_hosts(ranks)})" if self.several_hosts else ""
        return f"{self.program.named(_numbers(ranks))}{hosts}"

    # By the kernel's counters alone.

    def _stopped(self, ranks: Ranks) -> SlowVerdict | None:
        own = [each for each in ranks if each.own.windows[-1].states.get("T", 0.0) >= MOSTLY]
        pids = " ".join(str(each.own.pid) for each in own)
        text = f"{self._named(own)} {_form(own, 'is', 'are')} stopped (kill -CONT {pids})"
        return _verdict(VerdictKind.STOPPED, own, text) if own else None

    def _throttled(self, ranks: Ranks) -> SlowVerdict | None:
        """Return the ranks that a CPU quota throttles in every window.

        This is checked first, because under FSDP on gloo a quota throttles gloo's threads, so all ranks
        wait alike.
        """
        least = {
            each.own.rank: min(window.throttled or 0.0 for window in each.own.windows)
            for each in ranks
        }
        throttled = {rank: share for rank, share in least.items() if share >= MIN_REPORTED}
        if not throttled:
            return None
        own, others = _split(ranks, throttled)
        whose, whom = _form(own, "its", "their"), _form(own, "it", "them")
        share = percent(min(throttled.values()))
        text = f"{whose} CPU quota throttles {whom} {share} of the time"
        return _verdict(VerdictKind.THROTTLED, own, f"{self._waits_for_a_cpu(own, others)}: {text}")

    def _waits_for_a_cpu(self, own: Ranks, others: Ranks) -> str:
        queue = _compared(_queue, own, others or own)
        theirs = f", the others {percent(queue.others)}" if others else ""
        wait = f"{self._named(own)} {_form(own, 'waits', 'wait')} for a CPU"
        return f"{wait} {percent(queue.own)} of the time{theirs}"

    def _by_states(self, ranks: Ranks) -> SlowVerdict | None:
        """Return the ranks that are less often in the most common state of the median rank."""
        states = sorted({state for window in _windows(ranks) for state in window.states})
        if len(states) < 2:
            return None
        common = max(states, key=lambda state: _median(_share_in(state), ranks))
        own, others = _split(ranks, set.intersection(*_far_below(_share_in(common), ranks)))
        if not own:
            return None
        shares = {it: _compared(_share_in(it), own, others) for it in states if it != common}
        state, share = max(shares.items(), key=lambda item: item[1].more)
        differ = f"{self._named(own)} {_form(own, 'differs', 'differ')}"
        doing = IN_STATE.get(state) or f"in {_KERNEL_PREFIX.sub('', state)}"
        text = f"{differ}: {percent(share.own)} {doing}, the others {percent(share.others)}"
        return _verdict(VerdictKind.DIFFERS, own, text)

    # By stacks.

    def _by_stacks(self, ranks: Ranks) -> SlowVerdict:
        line = None
        # Replicas that serve requests have no line at which they wait for each other.
        if self.program.name == MAIN and _median(_wait, ranks) < MIN_WAIT:
            line = _waiting_line(ranks)
            if line is None:
                return self._in_common(ranks, []) or SlowVerdict(VerdictKind.NOT_CLEAR, NO_LINE)
            ranks = _waiting_at(line, ranks)
        found = _far_below(_wait, ranks)
        own, others = _split(ranks, set.intersection(*found))
        if not own:
            return self._in_common(ranks, found) or _none_slow(ranks, line)
        # Ranks that only some windows show as slow are not compared.
        others = _split(ranks, set.union(*found))[1] or others
        wait, queue = _compared(_wait, own, others), _compared(_queue, own, others)
        cpu = _compared(lambda window: window.cpu, own, others)
        gap = -wait.more
        if queue.more >= gap / 2 and cpu.own <= MAX_CPU_OF_A_STARVED_RANK * cpu.others:
            text = f"{self._waits_for_a_cpu(own, others)}: {_why_no_cpu(own)}"
            return _verdict(VerdictKind.NO_CPU, own, text)
        if gap < MIN_GAP_ON_FULL_CPUS and _median(_queue, ranks) >= FULL_CPUS:
            return _overcommitted(ranks)
        shares = {each: _compared(_share_of(each), own, others) for each in DOES}
        activity, share = max(shares.items(), key=lambda item: item[1].more)
        lack = _compared(lambda window: window.loader_queue, own, others)
        if activity is Activity.DATA and lack.more >= share.more / 2:
            text = f"the DataLoader processes of {self._named(own)} wait for a CPU"
            return _verdict(VerdictKind.NO_CPU, own, f"{text}: {_why_no_cpu(own)}")
        # The main thread's place is the loop over the DataLoader; its processes show the function.
        in_loader = self.reads.get(own[0].own.rank) if activity is Activity.DATA else None
        place = in_loader or _most_common_place(own, activity)
        is_whole_host = len(own) > 1 and own == [
            each for each in ranks if each.node_rank == own[0].node_rank
        ]
        who = self._named(own)
        if is_whole_host:
            who = f"{self.program.named(_numbers(own))}, all of {own[0].host},"
        they, spend = _form(own, "it", "they"), _form(own, "It spends", "They spend")
        theirs, where = ("are", f" at {line[1]}") if line else ("wait", "")
        text = (
            f"{who} {_form(own, 'is', 'are')} slow:"
            f" the others {theirs} {percent(wait.others)} of the time{where}, {they}"
            f" {percent(wait.own)}."
            f" {spend} {percent(share.own)} {DOES[activity]}{f' ({place})' if place else ''},"
            f" the others {percent(share.others)}."
        )
        if activity is Activity.DATA:
            text += _loaders_on_disk(own)
        if is_whole_host:
            text += _pressure(own[0])
        return replace(_verdict(VerdictKind.SLOW, own, text), activity=activity, place=place)

    def _in_common(self, ranks: Ranks, found: Sequence[set[int]]) -> SlowVerdict | None:
        """Return why no rank is slow in every window, if there is a common cause."""
        if _median(_queue, ranks) >= FULL_CPUS:
            return _overcommitted(ranks)
        if found and all(found):
            seen = ", then ".join(map(self.program.named, found))
            text = f"inconclusive: first {seen}; to sample longer: --seconds 30"
            return SlowVerdict(VerdictKind.NOT_CLEAR, text)
        data = _median(_share_of(Activity.DATA), ranks)
        if data >= ALL_READ_DATA:
            text = f"all ranks read data {percent(data)} of the time: try more DataLoader workers"
            return SlowVerdict(VerdictKind.ALL_READ_DATA, text, activity=Activity.DATA)
        return None


def _none_slow(ranks: Ranks, line: tuple[Activity, str] | None) -> SlowVerdict:
    wait = _median(_share_of(Activity.WAIT), ranks)
    if wait >= ALL_WAIT:
        place = _most_common_place(ranks, Activity.WAIT)
        text = f"all ranks wait {percent(wait)}{f' ({place})' if place else ''}"
        text += ": communication, or a hang; clusterrun stacks tells which"
        return SlowVerdict(VerdictKind.ALL_WAIT, text, activity=Activity.WAIT, place=place)
    waits = sorted(round(_mean(_wait, [each]), 3) for each in ranks)
    low, high = percent(waits[0]), percent(waits[-1])
    span = low if low == high else f"{low.removesuffix(' %')}-{high}"
    computes = (_mean(_share_of(it), ranks) for it in (Activity.COMPUTE, Activity.OPTIMIZER))
    compute = percent(round(sum(computes), 3))
    waited, place = (f"spend {span} at {line[1]}", line[1]) if line else (f"wait {span}", None)
    text = f"no rank is slow: they {waited}, compute {compute}"
    return SlowVerdict(VerdictKind.NONE_SLOW, text, place=place)


def _overcommitted(ranks: Ranks) -> SlowVerdict:
    lack = percent(round(_median(_queue, ranks), 3))
    why = f"; {others}" if (others := _others_use(ranks)) else ""
    text = (
        f"CPUs are overcommitted: ranks wait for one {lack} of the time; differences below 30"
        " points mean"
    )
    return SlowVerdict(VerdictKind.OVERCOMMITTED, f"{text} nothing{why}")


def _why_no_cpu(ranks: Ranks) -> str:
    threads = f"the job has more threads to run on {_hosts(ranks)} than there are CPUs for it"
    return _others_use(ranks) or threads


def _others_use(ranks: Ranks) -> str:
    """Return the CPU use of other processes on the nodes of these ranks; "" if it is small."""
    uses = [as_share(each.node.busy - each.node.busy_by_job) for each in ranks]
    shared = [each for each, use in zip(ranks, uses, strict=True) if use > MIN_REPORTED]
    use = percent(max(uses))
    return f"other processes use {use} of the CPUs on {_hosts(shared)}" if shared else ""


def _loaders_on_disk(ranks: Ranks) -> str:
    share = _mean(lambda window: window.loaders.get("D", 0.0), ranks)
    whose, how_long = _form(ranks, "Its", "Their"), percent(round(share, 3))
    text = f" {whose} DataLoader processes wait for a disk {how_long} of the time."
    return text if share >= MOSTLY else ""


def _pressure(rank: SampledRank) -> str:
    resources = {"cpu": "a CPU", "io": "a disk"}
    by_share = sorted(rank.node.pressure.items(), key=lambda item: -item[1])
    waits = ", ".join(
        f"for {resources.get(name, name)} {percent(share)} of the time"
        for name, share in by_share
        if share >= MIN_REPORTED
    )
    return f" On {rank.host}, processes wait {waits}." if waits else ""


# Sentences.


def _verdict(kind: VerdictKind, own: Ranks, sentence: str) -> SlowVerdict:
    hosts = tuple(dict.fromkeys(each.host for each in own))
    return SlowVerdict(kind, sentence, _numbers(own), hosts)


def _numbers(ranks: Ranks) -> tuple[int, ...]:
    return tuple(each.own.rank for each in ranks)


def _hosts(ranks: Ranks) -> str:
    return listed(each.host for each in ranks)


def _form(ranks: Ranks, singular: str, plural: str) -> str:
    return plural if len(ranks) > 1 else singular


# Places.


def _waiting_line(ranks: Ranks) -> tuple[Activity, str] | None:
    """Return the most common place of the median rank; None if more than half of the ranks share none.

    The low median is used, because two ranks at different lines do not wait for each other.
    """
    windows = _windows(ranks)
    seen = Counter((it.activity, it.place) for window in windows for it in window.places)
    # Ranks that read data or save do not wait for each other. The median of rare places is 0.
    common = [
        place
        for place, times in seen.items()
        if 2 * times > len(windows) and place[0] not in {Activity.DATA, Activity.SAVE}
    ]
    shares = {it: median_low(_share_at(it, window) for window in windows) for it in common}
    return min(shares, key=lambda it: (-shares[it], it[0].value, it[1]), default=None)


def _share_at(place: tuple[Activity, str], window: WindowSample) -> float:
    return sum(it.share for it in window.places if (it.activity, it.place) == place)


def _waiting_at(place: tuple[Activity, str], ranks: Ranks) -> Ranks:
    """Return the ranks with the time at this place counted as waiting."""
    # ``with_stacks`` has divided BACKWARD into COMPUTE and WAIT.
    activity = Activity.COMPUTE if place[0] is Activity.BACKWARD else place[0]

    def waiting(window: WindowSample) -> WindowSample:
        share, activities = _share_at(place, window), {**window.activities}
        for each, change in ((activity, -share), (Activity.GPU, share)):
            activities[each] = as_share(activities.get(each, 0.0) + change)
        places = tuple(it for it in window.places if (it.activity, it.place) != place)
        return replace(window, activities=activities, places=places)

    return [
        replace(each, own=replace(each.own, windows=tuple(map(waiting, each.own.windows))))
        for each in ranks
    ]


def _most_common_place(ranks: Ranks, activity: Activity) -> str | None:
    # DDP computes and waits in the backward pass.
    is_in_backward = activity in {Activity.COMPUTE, Activity.WAIT}
    seen_as = (activity, *([Activity.BACKWARD] if is_in_backward else []))
    return _most_common((it for window in _windows(ranks) for it in window.places), *seen_as)


def _most_common(places: Iterable[SampledPlace], *activities: Activity) -> str | None:
    shares: dict[str, float] = {}
    for it in places:
        if it.activity in activities:
            shares[it.place] = shares.get(it.place, 0.0) + it.share
    return max(shares, key=shares.__getitem__, default=None)
