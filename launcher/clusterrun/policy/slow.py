"""Which rank of a job is slow, and why: decided from samples of the main threads of all ranks.

Ranks that train together wait for the slowest one in each step. So the slow rank is the one that waits
less than the others, in each of several windows; what it does meanwhile is the cause. A rank that lacks
a CPU looks the same, and is told apart by what the kernel counts.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from statistics import median, median_low

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.bounds import as_share
from clusterrun.job.job import MAIN
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.samples import (
    Activity,
    NodeSamples,
    RankSamples,
    SampledPlace,
    WhyNoStacks,
    WindowSample,
)

LEAST_GAP = 0.20
"""A rank is slow if the others wait at least so much more: below, ranks differ by chance."""

LEAST_GAP_ON_FULL_CPUS = 0.30
"""As above, where ranks lack CPUs."""

FULL_CPUS = 0.10
"""The median rank is ready to run and has no CPU for so much of the time: CPUs are full."""

MOST_SLOW = 0.5
"""Part of the ranks that may be slow: if more wait less than others, these others differ."""

LEAST_THROTTLED = 0.10
"""A CPU quota that holds a rank up for so much of the time is named whatever the others do."""

LEAST_WAIT = 0.10
"""Where the median rank waits less, ranks wait for each other in a line that does not look like it."""

MOST_CPU_OF_A_STARVED_RANK = 1.5
"""Times what the others use: a rank that uses more has more to do, on full CPUs too."""

LEAST_BUSY_BY_OTHERS = 0.10
"""Part of the CPUs that other processes use if they are named."""

ALL_READ_DATA = 0.30

ALL_WAIT = 0.80

MOSTLY = 0.5

LEAST_PRESSURE = 0.10
"""Of a slow host: how long its tasks waited for something that is named."""

_STOPPED = "T"
_WAITS_FOR_DISK = "D"
_WAITS = (Activity.WAIT, Activity.GPU)


class SampledNode(Struct, frozen=True):
    """What one node has answered."""

    node_rank: int
    host: str
    samples: NodeSamples


class SampledRank(Struct, frozen=True):
    """One rank, and where it is."""

    node_rank: int
    host: str
    node: NodeSamples
    own: RankSamples

    @property
    def has_stacks(self) -> bool:
        return bool(self.own.windows) and all(each.samples for each in self.own.windows)


class Compared(Struct, frozen=True):
    """A share of the time, of some ranks and of the others."""

    own: float
    others: float | None
    """None: there are no others."""


# Verdicts.


class StoppedRanks(Struct, frozen=True, tag=True):
    """Ranks that are stopped by a signal, as by Ctrl-Z: the others wait for them."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    pids: tuple[int, ...]


class NoCpuCause(Enum):
    """Why a rank lacks a CPU."""

    QUOTA = "quota"
    """The CPU limit of its cgroup."""
    OTHERS = "other processes"
    OVERCOMMITTED = "overcommitted"
    """Its own node's ranks have more threads to run than there are CPUs."""


class StarvedRanks(Struct, frozen=True, tag=True):
    """Ranks that are ready to run and get no CPU."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    share: Compared
    """Of the time without a CPU; of ``loaders``, CPUs that they lack together."""
    cause: NoCpuCause
    cause_share: float
    """Of the time that the quota takes, or of the CPUs that other processes use."""
    loaders: bool = False
    """It is their DataLoader processes that get none."""


class SlowRanks(Struct, frozen=True, tag=True):
    """Ranks that the others wait for, and what they do meanwhile."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    is_whole_host: bool
    """They are all ranks of the one host, and there are other hosts."""
    wait: Compared
    activity: Activity
    """What they do more than the others."""
    share: Compared
    """Of the time in this activity."""
    place: str
    """Where in the script; "" if it is not known."""
    meeting_place: str = ""
    """The line that counts as waiting, where no rank is seen to wait; "" otherwise."""
    pressure: tuple[tuple[str, float], ...] = ()
    """What tasks of the host wait for, the most common first; of a whole host only."""
    loaders_wait_for_disk: float | None = None
    """Part of the time; None: they do not, or it does not read data."""


class DifferingRanks(Struct, frozen=True, tag=True):
    """Ranks that differ by what the kernel shows: without stacks, the cause is not known."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    state: str
    """As in ``WindowSample.states``."""
    share: Compared


class UnclearRanks(Struct, frozen=True, tag=True):
    """Each window names other ranks."""

    windows: tuple[tuple[int, ...], ...]


class OvercommittedCpus(Struct, frozen=True, tag=True):
    """The median rank lacks a CPU for so much of the time that ranks differ by chance."""

    share: float
    hosts: tuple[str, ...] = ()
    """Those on which other processes are named."""
    by_others: float = 0.0
    """Part of the CPUs that other processes use there, at most."""


class DataBound(Struct, frozen=True, tag=True):
    """All ranks alike read data."""

    share: float


class WaitBound(Struct, frozen=True, tag=True):
    """All ranks alike wait for others."""

    share: float
    place: str


class NoneSlow(Struct, frozen=True, tag=True):
    """No rank is slow."""

    least_wait: float
    most_wait: float
    compute: float
    meeting_place: str = ""
    """The line that counts as waiting, where no rank is seen to wait; "" otherwise."""


class NoMeetingPlace(Struct, frozen=True, tag=True):
    """No rank is seen to wait, and there is no line where most of them are."""


class AloneRank(Struct, frozen=True, tag=True):
    """There is one rank only, which waits for no other."""

    rank: int
    activities: tuple[tuple[Activity, float], ...]
    """The most common first."""


class NoneDiffers(Struct, frozen=True, tag=True):
    """No rank has stacks, and what the kernel shows is alike."""


class NotSampled(Struct, frozen=True, tag=True):
    """No rank runs."""


SlowVerdict = (
    StoppedRanks
    | StarvedRanks
    | SlowRanks
    | DifferingRanks
    | UnclearRanks
    | OvercommittedCpus
    | DataBound
    | WaitBound
    | NoneSlow
    | NoMeetingPlace
    | AloneRank
    | NoneDiffers
    | NotSampled
)


_OF_SERVICES = (StoppedRanks, StarvedRanks, SlowRanks, UnclearRanks, WaitBound)
"""What is found only where ranks wait for each other, or matters in any program."""


class ProgramVerdict(Struct, frozen=True):
    """The verdict on the ranks of the main program, or of a service."""

    program: str
    verdict: SlowVerdict


def judge_programs(
    nodes: Iterable[SampledNode], programs: Iterable[NumberedProgram] = ()
) -> tuple[ProgramVerdict, ...]:
    """Return the verdict on the main program, then on each service whose ranks wait for each other.

    ``programs``: those of the job; none if it has no services.
    """
    ranks = ranks_of(nodes)
    known = tuple(programs)
    if not known:
        return (ProgramVerdict(MAIN, judge(ranks)),)
    verdicts = []
    for program in known:
        own = [each for each in ranks if program.named([each.own.rank])]
        if program.name == MAIN:
            verdicts.append(ProgramVerdict(MAIN, judge(own)))
        elif len(own) > 1:
            verdict = judge(own, may_have_meeting_place=False)
            # Replicas that serve requests do not wait for each other: a busy one is not slow.
            if isinstance(verdict, _OF_SERVICES):
                verdicts.append(ProgramVerdict(program.name, verdict))
    return tuple(verdicts)


def ranks_of(nodes: Iterable[SampledNode]) -> list[SampledRank]:
    """Return the ranks of all nodes, in order."""
    ranks = [
        SampledRank(node.node_rank, node.host, node.samples, own)
        for node in nodes
        for own in node.samples.ranks
    ]
    return sorted(ranks, key=lambda each: each.own.rank)


def judge(ranks: Sequence[SampledRank], *, may_have_meeting_place: bool = True) -> SlowVerdict:
    """Return the verdict on ranks that work together.

    Args:
        ranks: all of them; those that have ended, or are not Python, are not judged.
        may_have_meeting_place: where no rank waits, the line in which the median rank is most counts
            as waiting: ranks with GPUs wait for each other in a line like ``loss.item()``.

    """
    running = [each for each in ranks if each.own.windows and not _is_left_out(each)]
    if not running:
        return NotSampled()
    stopped = [each for each in running if each.own.windows[-1].states.get(_STOPPED, 0) >= MOSTLY]
    if stopped:
        pids = tuple(each.own.pid for each in stopped)
        return StoppedRanks(_numbers(stopped), _hosts(stopped), pids)
    if throttled := _throttled(running):
        return throttled
    with_stacks = [each for each in running if each.has_stacks]
    verdict = None
    if len(with_stacks) > 1 or len(running) == len(with_stacks) == 1:
        verdict = _by_stacks(_Group(with_stacks), may_have_meeting_place=may_have_meeting_place)
    if len(with_stacks) < len(running) and not isinstance(verdict, SlowRanks | StarvedRanks):
        return _by_states(_Group(running)) or verdict or NoneDiffers()
    return verdict or NoneDiffers()


def rank_to_ask_again(verdicts: Iterable[ProgramVerdict]) -> int | None:
    """Return the rank whose DataLoader processes tell why it is slow; None: none does."""
    for each in verdicts:
        slow = each.verdict
        if isinstance(slow, SlowRanks) and slow.activity is Activity.DATA:
            return slow.ranks[0]
    return None


def with_loader_place(
    verdicts: Iterable[ProgramVerdict], samples: Iterable[SampledNode]
) -> tuple[ProgramVerdict, ...]:
    """Return the verdicts with the place of the DataLoader processes of the rank that was asked again.

    The place of a rank that waits for its DataLoader is the loop over it, which tells less.
    """
    asked = {each.own.rank: each.own.loader_places for each in ranks_of(samples)}
    return tuple(_with_place(each, asked) for each in verdicts)


def _with_place(
    each: ProgramVerdict, asked: Mapping[int, tuple[SampledPlace, ...]]
) -> ProgramVerdict:
    slow = each.verdict
    if not isinstance(slow, SlowRanks) or slow.activity is not Activity.DATA:
        return each
    # The places of a loader that has nothing to do are in torch or in the standard library.
    reads = [it for it in asked.get(slow.ranks[0], ()) if it.activity is Activity.DATA]
    best = max(reads, key=lambda it: it.share, default=None)
    return each if best is None else replace(each, verdict=replace(slow, place=best.place))


def _is_left_out(each: SampledRank) -> bool:
    return each.own.why_no_stacks in {WhyNoStacks.ENDED, WhyNoStacks.NOT_PYTHON}


def _numbers(ranks: Iterable[SampledRank]) -> tuple[int, ...]:
    return tuple(each.own.rank for each in ranks)


def _hosts(ranks: Iterable[SampledRank]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.host for each in ranks))


class _Group:
    """Ranks that are compared, and their windows: iterating yields those of all ranks at one time."""

    def __init__(self, ranks: Sequence[SampledRank]) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        count = min(len(each.own.windows) for each in ranks)
        self.windows = [[each.own.windows[at] for each in ranks] for at in range(count)]

    def __iter__(self) -> Iterator[list[WindowSample]]:
        return iter(self.windows)

    def all_windows(self) -> list[WindowSample]:
        return [window for windows in self.windows for window in windows]

    def median(self, of: Callable[[WindowSample], float]) -> float:
        return median(map(of, self.all_windows()))

    def mean(self, of: Callable[[WindowSample], float], who: Collection[int]) -> float:
        """Return the mean over the windows of the median over these ranks."""
        medians = [median(of(windows[at]) for at in who) for windows in self.windows]
        return sum(medians) / len(medians)

    def compared(
        self,
        of: Callable[[WindowSample], float],
        own: Collection[int],
        others: Collection[int],
    ) -> Compared:
        return Compared(
            round(self.mean(of, own), 3), round(self.mean(of, others), 3) if others else None
        )


def _far_below(shares: Sequence[float]) -> tuple[set[int], float]:
    """Return the ranks below the largest gap in the sorted shares, and the gap; none if it is small."""
    order = sorted(range(len(shares)), key=shares.__getitem__)
    most = int(len(order) * MOST_SLOW)
    gaps = [(shares[order[at]] - shares[order[at - 1]], at) for at in range(1, most + 1)]
    gap, below = max(gaps, default=(0.0, 0))
    return (set(order[:below]), gap) if gap >= LEAST_GAP else (set(), gap)


def _state_share(state: str, window: WindowSample) -> float:
    return window.states.get(state, 0.0)


def _activity_share(activity: Activity, window: WindowSample) -> float:
    return window.activities.get(activity, 0.0)


def _wait(window: WindowSample) -> float:
    return sum(window.activities.get(each, 0.0) for each in _WAITS)


def _queue(window: WindowSample) -> float:
    return window.queue


def _cpu(window: WindowSample) -> float:
    return window.cpu


def _loader_queue(window: WindowSample) -> float:
    return window.loader_queue


# By the kernel's counters alone.


def _throttled(ranks: Sequence[SampledRank]) -> StarvedRanks | None:
    """Return the ranks that a CPU quota holds up in every window.

    It is asked for first: under FSDP on gloo the threads of gloo are held up, and all ranks wait alike.
    """
    own: list[int] = []
    others: list[int] = []
    for at, each in enumerate(ranks):
        is_slow = all((window.throttled or 0.0) >= LEAST_THROTTLED for window in each.own.windows)
        (own if is_slow else others).append(at)
    if not own:
        return None
    slow = [ranks[at] for at in own]
    quota = min(window.throttled or 0.0 for each in slow for window in each.own.windows)
    share = _Group(ranks).compared(_queue, own, others)
    return StarvedRanks(_numbers(slow), _hosts(slow), share, NoCpuCause.QUOTA, quota)


def _by_states(group: "_Group") -> DifferingRanks | None:
    """Return the ranks that are less than the others in the state that the median rank is in most."""
    states = sorted({state for window in group.all_windows() for state in window.states})
    if not states:
        return None
    common = max(
        states,
        key=lambda state: group.median(partial(_state_share, state)),
    )
    slow = set.intersection(
        *(_far_below([each.states.get(common, 0.0) for each in windows])[0] for windows in group)
    )
    others = [at for at in range(group.size) if at not in slow]
    if not slow or len(states) == 1:
        return None
    shares = {
        state: group.compared(partial(_state_share, state), slow, others)
        for state in states
        if state != common
    }
    state = max(shares, key=lambda state: shares[state].own - (shares[state].others or 0.0))
    ranks = [group.ranks[at] for at in sorted(slow)]
    return DifferingRanks(_numbers(ranks), _hosts(ranks), state, shares[state])


# By stacks.


def _by_stacks(group: _Group, *, may_have_meeting_place: bool) -> SlowVerdict:
    if group.size == 1:
        return _alone(group)
    met = ""
    if may_have_meeting_place and group.median(_wait) < LEAST_WAIT:
        meeting_place = _meeting_place(group)
        if meeting_place is None:
            return _none_slow(group, (), None)
        met = meeting_place[1]
        group.windows = [
            [_with_meeting(window, meeting_place) for window in windows] for windows in group
        ]
    found = [_far_below([_wait(window) for window in windows])[0] for windows in group]
    slow = set.intersection(*found)
    if not slow:
        return _none_slow(group, found, met)
    named = set.union(*found)
    # Ranks that a single window names are neither slow nor an example of the others.
    others = [at for at in range(group.size) if at not in named] or [
        at for at in range(group.size) if at not in slow
    ]
    own = sorted(slow)
    wait = group.compared(_wait, own, others)
    gap = _excess(wait, -1)
    if starved := _starved(group, own, others, gap):
        return starved
    if gap < LEAST_GAP_ON_FULL_CPUS and group.median(_queue) >= FULL_CPUS:
        return _overcommitted(group)
    shares = {
        activity: group.compared(partial(_activity_share, activity), own, others)
        for activity in Activity
        if activity not in _WAITS
    }
    activity = max(shares, key=lambda each: _excess(shares[each]))
    ranks = [group.ranks[at] for at in own]
    if activity is Activity.DATA and _lack_cpus(group, own, others, _excess(shares[activity])):
        cause, cause_share = _cause_without_quota(ranks)
        lack = group.compared(_loader_queue, own, others)
        return StarvedRanks(_numbers(ranks), _hosts(ranks), lack, cause, cause_share, loaders=True)
    is_whole_host = _is_whole_host(group, ranks)
    return SlowRanks(
        _numbers(ranks),
        _hosts(ranks),
        is_whole_host,
        wait,
        activity,
        shares[activity],
        _most_common_place(group, own, activity),
        met,
        _pressure(ranks[0].node) if is_whole_host else (),
        _loaders_on_disk(group, own) if activity is Activity.DATA else None,
    )


def _alone(group: _Group) -> AloneRank:
    shares = [
        (activity, round(group.mean(partial(_activity_share, activity), [0]), 3))
        for activity in Activity
    ]
    ordered = sorted(shares, key=lambda item: -item[1])
    return AloneRank(group.ranks[0].own.rank, tuple(it for it in ordered if it[1] > 0))


def _meeting_place(group: _Group) -> tuple[Activity, str] | None:
    """Return where the median rank is most; None: there is no line where more than half of them are.

    Of an even number of ranks it is the one below the middle: two that are at one line each do not meet.
    """
    windows = group.all_windows()
    seen = Counter((it.activity, it.place) for window in windows for it in window.places)
    # Where ranks read data or save, they do not wait for each other. Of rare places the median is 0.
    common = [
        place
        for place, times in seen.items()
        if 2 * times > len(windows) and place[0] not in _DO_NOT_MEET
    ]
    ordered = sorted(common, key=lambda place: (place[0].value, place[1]))
    return max(
        ordered,
        key=lambda place: median_low(_place_share(place, window) for window in windows),
        default=None,
    )


_DO_NOT_MEET = (Activity.DATA, Activity.SAVE)


def _place_share(place: tuple[Activity, str], window: WindowSample) -> float:
    return sum(it.share for it in window.places if (it.activity, it.place) == place)


def _with_meeting(window: WindowSample, place: tuple[Activity, str]) -> WindowSample:
    """Count the time at this place as waiting."""
    share = _place_share(place, window)
    if not share:
        return window
    # Only some of what was seen in backward is computing: see ``with_stacks``.
    activity = Activity.COMPUTE if place[0] is Activity.BACKWARD else place[0]
    activities = {**window.activities}
    activities[activity] = as_share(activities.get(activity, 0.0) - share)
    activities[Activity.GPU] = as_share(activities.get(Activity.GPU, 0.0) + share)
    places = tuple(it for it in window.places if (it.activity, it.place) != place)
    return replace(window, activities=activities, places=places)


def _none_slow(group: _Group, found: Sequence[set[int]], met: str | None) -> SlowVerdict:
    """Return what all ranks have in common; ``met`` is None if they wait nowhere."""
    if group.median(_queue) >= FULL_CPUS:
        return _overcommitted(group)
    if len(found) > 1 and all(found):
        return UnclearRanks(
            tuple(_numbers(group.ranks[at] for at in sorted(slow)) for slow in found)
        )
    data = group.median(partial(_activity_share, Activity.DATA))
    if data >= ALL_READ_DATA:
        return DataBound(data)
    if met is None:
        return NoMeetingPlace()
    everyone = range(group.size)
    wait = group.median(partial(_activity_share, Activity.WAIT))
    if wait >= ALL_WAIT:
        return WaitBound(wait, _most_common_place(group, everyone, Activity.WAIT))
    waits = [group.mean(_wait, [at]) for at in everyone]
    computes = (Activity.COMPUTE, Activity.OPTIMIZER)
    compute = sum(group.mean(partial(_activity_share, each), everyone) for each in computes)
    return NoneSlow(round(min(waits), 3), round(max(waits), 3), round(compute, 3), met)


def _excess(share: Compared, sign: int = 1) -> float:
    return sign * (share.own - (share.others or 0.0))


def _lack_cpus(group: _Group, own: Collection[int], others: Collection[int], excess: float) -> bool:
    """Return whether half of the time that the ranks read data more is their loaders' without a CPU."""
    return _excess(group.compared(_loader_queue, own, others)) >= excess / 2


def _starved(
    group: _Group, own: Collection[int], others: Collection[int], gap: float
) -> StarvedRanks | None:
    """Return the slow ranks if half of the gap is that they lack a CPU, and they don't do more work."""
    queue = group.compared(_queue, own, others)
    cpu = group.compared(_cpu, own, others)
    if _excess(queue) < gap / 2 or cpu.own > MOST_CPU_OF_A_STARVED_RANK * (cpu.others or 0.0):
        return None
    ranks = [group.ranks[at] for at in own]
    cause, share = _cause_without_quota(ranks)
    return StarvedRanks(_numbers(ranks), _hosts(ranks), queue, cause, share)


def _overcommitted(group: _Group) -> OvercommittedCpus:
    shared = [each for each in group.ranks if _by_others(each) > LEAST_BUSY_BY_OTHERS]
    by_others = max(map(_by_others, shared), default=0.0)
    return OvercommittedCpus(round(group.median(_queue), 3), _hosts(shared), by_others)


def _cause_without_quota(ranks: Sequence[SampledRank]) -> tuple[NoCpuCause, float]:
    by_others = max(map(_by_others, ranks))
    if by_others > LEAST_BUSY_BY_OTHERS:
        return NoCpuCause.OTHERS, by_others
    return NoCpuCause.OVERCOMMITTED, 0.0


def _by_others(each: SampledRank) -> float:
    """Return the part of its node's CPUs that other processes use."""
    return as_share(each.node.busy - each.node.busy_by_job)


def _is_whole_host(group: _Group, slow: Sequence[SampledRank]) -> bool:
    nodes = {each.node_rank for each in slow}
    on_them = [each for each in group.ranks if each.node_rank in nodes]
    return len(nodes) == 1 and len(on_them) == len(slow) > 1


def _pressure(node: NodeSamples) -> tuple[tuple[str, float], ...]:
    felt = [(name, share) for name, share in node.pressure.items() if share >= LEAST_PRESSURE]
    return tuple(sorted(felt, key=lambda item: -item[1]))


def _loaders_on_disk(group: _Group, own: Collection[int]) -> float | None:
    share = group.mean(lambda window: window.loaders.get(_WAITS_FOR_DISK, 0.0), own)
    return round(share, 3) if share >= MOSTLY else None


def _most_common_place(group: _Group, who: Iterable[int], activity: Activity) -> str:
    """Return where these ranks are most in this activity; "" if it is not known."""
    # DDP waits and computes in backward.
    seen_as = {activity}
    if activity in {Activity.COMPUTE, Activity.WAIT}:
        seen_as.add(Activity.BACKWARD)
    ranks = list(who)
    places: dict[str, float] = {}
    for windows in group:
        for at in ranks:
            for it in windows[at].places:
                if it.activity in seen_as:
                    places[it.place] = places.get(it.place, 0.0) + it.share
    return max(places, key=places.__getitem__, default="")
