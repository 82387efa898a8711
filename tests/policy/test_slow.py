"""Verdicts on samples of ranks."""

from collections.abc import Sequence

import msgspec
import pytest
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
from clusterrun.policy.slow import SampledRank, SlowVerdict, VerdictKind, judge, rank_to_ask_again
from msgspec.structs import replace

LOOP = "train.py:50 main"
"""The default place of a window."""

STATES = {"do_poll": 0.7, "R": 0.3}


def window(
    *, cpu: float = 0.3, queue: float = 0.0, place: str = LOOP, **shares: float
) -> WindowSample:
    """Return a window with these activities at one place."""
    activities = {Activity(name): share for name, share in shares.items()}
    places = tuple(SampledPlace(each, place, share) for each, share in activities.items())
    return WindowSample(
        cpu=cpu, queue=queue, states=STATES, samples=100, activities=activities, places=places
    )


Windows = WindowSample | Sequence[WindowSample]
"""One sample for both windows, or two."""

NODE = NodeSamples((), 8, 0.5, 0.5, {})
SHARED = replace(NODE, busy=0.9, busy_by_job=0.6)
PRESSED = replace(NODE, pressure={"memory": 0.05, "cpu": 0.2, "io": 0.57})


def rank(
    number: int, windows: Windows, on: int = 1, node: NodeSamples = NODE, **fields: object
) -> SampledRank:
    both = (windows, windows) if isinstance(windows, WindowSample) else tuple(windows)
    own = replace(RankSamples(number, 100 + number, both), **fields)
    return SampledRank(on, f"n{on}", node, own)


def ranks(
    *each: Windows, first: int = 0, on: int = 1, node: NodeSamples = NODE
) -> list[SampledRank]:
    return [rank(number, windows, on, node) for number, windows in enumerate(each, first)]


def without_stacks(number: int, windows: Windows) -> SampledRank:
    return rank(number, windows, why_no_stacks=WhyNoStacks.MISSING)


WAITS = window(wait=0.6, data=0.04, compute=0.36)
READS = window(wait=0.03, data=0.6, compute=0.37, place="train.py:88 Samples.__getitem__")
HEALTHY = window(wait=0.35, compute=0.4, optimizer=0.1, other=0.15)
STARVED = window(wait=0.05, compute=0.95, cpu=0.3, queue=0.55)
QUOTA = replace(STARVED, throttled=0.51)
SAVES = window(wait=0.03, save=0.5, compute=0.47, place="t.py:7 save")
MEETS = window(other=0.9, compute=0.1, place="train.py:60 loss.item")
LATE = window(other=0.3, compute=0.7, place="train.py:60 loss.item")
AT_REST = window(other=0.85, place="train.py:60 loss.item")
STOPPED = replace(WAITS, states={"T": 1.0})
FULL = replace(HEALTHY, queue=0.35)
ON_DISK = replace(READS, loaders={"D": 0.6, "S": 0.4})
PROC = WindowSample(cpu=0.3, queue=0.0, states={"do_poll": 0.95, "R": 0.05})
PROC_LATE = replace(PROC, states={"do_poll": 0.3, "do_sys_read": 0.6, "R": 0.1})
PROC_DISK = replace(PROC, states={"do_poll": 0.3, "D": 0.6, "R": 0.1})
BACKWARD = replace(
    window(wait=0.05, compute=0.95),
    places=(
        SampledPlace(Activity.BACKWARD, "train.py:70 step", 0.9),
        SampledPlace(Activity.OTHER, LOOP, 0.1),
    ),
)

IT_READS = "slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data (train.py:88 Samples.__getitem__), the others 4 %."
THEY_READ = IT_READS.replace("it 3 %", "they 3 %").replace("It spends", "They spend")
THREADS = "the job has more threads to run on n1 than there are CPUs for it"
LACK = (
    "CPUs are overcommitted: ranks wait for one 35 % of the time; differences below 30 points mean"
    " nothing"
)
NONE_DIFFERS = "no rank stands out: the main threads of all ranks wait for the same things"

CASES = {
    "one rank reads data": (
        [*ranks(WAITS, WAITS, WAITS, WAITS), *ranks(WAITS, READS, first=4, on=2)],
        f"rank 5 (n2) is {IT_READS}",
    ),
    "several ranks": (
        [*ranks(WAITS, SAVES, WAITS), *ranks(SAVES, WAITS, first=3, on=2)],
        "ranks 1, 3 (n1, n2) are slow: the others wait 60 % of the time, they 3 %. They spend 50 % saving or loading a checkpoint (t.py:7 save), the others 0 %.",
    ),
    "a place that is not known": (
        ranks(WAITS, WAITS, replace(SAVES, places=())),
        "rank 2 is slow: the others wait 60 % of the time, it 3 %. It spends 50 % saving or loading a checkpoint, the others 0 %.",
    ),
    "a host": (
        [*ranks(WAITS, WAITS), *ranks(READS, READS, first=2, on=2, node=PRESSED)],
        (
            f"ranks 2-3, all of n2, are {THEY_READ} On n2, processes wait for a disk 57 % of the time,"
            " for a CPU 20 % of the time."
        ),
    ),
    "a host without pressure": (
        [*ranks(WAITS, WAITS), *ranks(READS, READS, first=2, on=2)],
        f"ranks 2-3, all of n2, are {THEY_READ}",
    ),
    "loaders on a disk": (
        ranks(WAITS, WAITS, WAITS, ON_DISK),
        f"rank 3 is {IT_READS} Its DataLoader processes wait for a disk 60 % of the time.",
    ),
    "backward, which is computing": (
        ranks(WAITS, WAITS, WAITS, BACKWARD),
        "rank 3 is slow: the others wait 60 % of the time, it 5 %. It spends 95 % computing (train.py:70 step), the others 36 %.",
    ),
    "the quota of one rank": (
        ranks(*[replace(WAITS, queue=0.1)] * 3, QUOTA),
        "rank 3 waits for a CPU 55 % of the time, the others 10 %: its CPU quota throttles it 51 % of the time",
    ),
    "the quota of all ranks, which wait alike": (
        ranks(*[replace(WAITS, throttled=0.4, queue=0.2)] * 2),
        "ranks 0-1 wait for a CPU 20 % of the time: their CPU quota throttles them 40 % of the time",
    ),
    "a quota that held a rank up in one window only": (
        ranks(*[HEALTHY] * 3, [HEALTHY, replace(HEALTHY, throttled=0.4)]),
        "no rank is slow: they wait 35 %, compute 50 %",
    ),
    "other processes": (
        ranks(WAITS, WAITS, WAITS, STARVED, node=SHARED),
        "rank 3 waits for a CPU 55 % of the time, the others 0 %: other processes use 30 % of the CPUs on n1",
    ),
    "too many threads": (
        ranks(WAITS, WAITS, WAITS, STARVED),
        f"rank 3 waits for a CPU 55 % of the time, the others 0 %: {THREADS}",
    ),
    "more work on full CPUs": (
        ranks(*[replace(WAITS, cpu=0.1)] * 3, STARVED),
        f"rank 3 is slow: the others wait 60 % of the time, it 5 %. It spends 95 % computing ({LOOP}), the others 36 %.",
    ),
    "loaders without a CPU": (
        ranks(WAITS, WAITS, WAITS, replace(READS, loader_queue=1.8)),
        f"the DataLoader processes of rank 3 wait for a CPU: {THREADS}",
    ),
    "none": (
        ranks(HEALTHY, HEALTHY, window(wait=0.31, compute=0.54, other=0.15)),
        "no rank is slow: they wait 31-35 %, compute 50 %",
    ),
    "a gap that one window has": (
        ranks(WAITS, WAITS, WAITS, [WAITS, READS]),
        "no rank is slow: they wait 32-60 %, compute 36 %",
    ),
    "windows that name different ranks": (
        ranks(WAITS, WAITS, [WAITS, READS], [READS, WAITS]),
        "inconclusive: first rank 3, then rank 2; to sample longer: --seconds 30",
    ),
    "a rank that one window names beside the slow one": (
        ranks(WAITS, WAITS, [WAITS, READS], READS),
        f"rank 3 is {IT_READS}",
    ),
    "each rank is named by some window": (
        ranks([READS, WAITS, WAITS], [READS] * 3, [WAITS, READS, WAITS], [WAITS, WAITS, READS]),
        f"rank 1 is {IT_READS}",
    ),
    "all read data": (
        ranks(*[window(data=0.45, wait=0.3, compute=0.25)] * 3),
        "all ranks read data 45 % of the time: try more DataLoader workers",
    ),
    "all wait": (
        ranks(*[window(wait=0.95, compute=0.05, place="train.py:47 main")] * 3),
        "all ranks wait 95 % (train.py:47 main): communication, or a hang; clusterrun stacks tells which",
    ),
    "full CPUs and no gap": (ranks(FULL, FULL, FULL), LACK),
    "CPUs that other processes use": (
        ranks(FULL, FULL, FULL, node=SHARED),
        f"{LACK}; other processes use 30 % of the CPUs on n1",
    ),
    "full CPUs and a gap below 30 points": (
        ranks(FULL, FULL, FULL, window(wait=0.1, compute=0.9, queue=0.35)),
        LACK,
    ),
    "GPUs: no rank is seen to wait": (
        ranks(MEETS, MEETS, MEETS, LATE),
        "rank 3 is slow: the others are 90 % of the time at train.py:60 loss.item, it 30 %. It spends 70 % computing (train.py:60 loss.item), the others 10 %.",
    ),
    "GPUs: alike": (
        ranks(MEETS, MEETS, AT_REST),
        "no rank is slow: they spend 85-90 % at train.py:60 loss.item, compute 10 %",
    ),
    "GPUs: a rank that never gets there": (
        ranks(MEETS, MEETS, MEETS, window(compute=1.0, place="train.py:70 step")),
        "rank 3 is slow: the others are 90 % of the time at train.py:60 loss.item, it 0 %. It spends 100 % computing (train.py:70 step), the others 10 %.",
    ),
    "GPUs: all read data": (
        ranks(*[window(data=0.7, other=0.3)] * 3),
        "all ranks read data 70 % of the time: try more DataLoader workers",
    ),
    "two ranks, each at a line of its own": (
        ranks(MEETS, window(other=1.0, place="train.py:7 rest")),
        "inconclusive: no rank seems to wait for others, and most are not at the same line; try clusterrun stacks",
    ),
    "a stopped rank before all else": (
        ranks(QUOTA, READS, WAITS, STOPPED),
        "rank 3 is stopped (kill -CONT 103)",
    ),
    "stopped ranks": (
        [*ranks(WAITS, STOPPED), *ranks(WAITS, STOPPED, first=2, on=2)],
        "ranks 1, 3 (n1, n2) are stopped (kill -CONT 101 103)",
    ),
    "a rank that has ended": (
        [*ranks(HEALTHY, HEALTHY), rank(2, STOPPED, why_no_stacks=WhyNoStacks.ENDED)],
        "no rank is slow: they wait 35 %, compute 50 %",
    ),
    "a rank that is not Python": (
        [*ranks(HEALTHY, HEALTHY), rank(2, PROC, why_no_stacks=WhyNoStacks.NOT_PYTHON)],
        "no rank is slow: they wait 35 %, compute 50 %",
    ),
    "no py-spy": (
        ranks(PROC, PROC, PROC, PROC_LATE),
        "rank 3 differs: 60 % in read, the others 0 %",
    ),
    "no py-spy, and several ranks wait for a disk": (
        ranks(PROC, PROC_DISK, PROC, PROC_DISK),
        "ranks 1, 3 differ: 60 % waiting for a disk or a device, the others 0 %",
    ),
    "no py-spy, and nothing differs": (ranks(PROC, PROC, PROC), NONE_DIFFERS),
    "no py-spy, and one state only": (ranks(*[replace(PROC, states={"R": 1.0})] * 2), NONE_DIFFERS),
    "no py-spy, and no states": (ranks(*[replace(PROC, states={})] * 2), NONE_DIFFERS),
    "the rank without stacks is the slow one": (
        [*ranks(*[replace(WAITS, states=PROC.states)] * 3), without_stacks(3, PROC_LATE)],
        "rank 3 differs: 60 % in read, the others 0 %",
    ),
    "a rank without stacks, and none differs": (
        [*ranks(HEALTHY, HEALTHY, HEALTHY), without_stacks(3, replace(PROC, states=STATES))],
        "no rank is slow: they wait 35 %, compute 50 %",
    ),
    "a slow rank with stacks, and one without": (
        [*ranks(WAITS, WAITS, READS), without_stacks(3, PROC_LATE)],
        f"rank 2 is {IT_READS}",
    ),
    "one rank": (ranks(READS), "rank 0 is alone, so there is nothing to compare"),
    "one rank that is judged": (
        [*ranks(READS), rank(1, READS, why_no_stacks=WhyNoStacks.ENDED)],
        "rank 0 is alone, so there is nothing to compare",
    ),
    "no rank": ([], "no rank was sampled"),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_sentence(case: str) -> None:
    sampled, expected = CASES[case]

    assert [each.sentence for each in judge(sampled)] == [expected]


def test_verdict_as_values() -> None:
    sampled = [*ranks(WAITS, READS, WAITS), *ranks(READS, WAITS, first=3, on=2)]

    [verdict] = judge(sampled)

    assert replace(verdict, sentence="") == SlowVerdict(
        VerdictKind.SLOW,
        "",
        ranks=(1, 3),
        hosts=("n1", "n2"),
        activity=Activity.DATA,
        place="train.py:88 Samples.__getitem__",
        program=MAIN,
    )


def test_samples_round_trip() -> None:
    samples = replace(NODE, ranks=(rank(0, replace(QUOTA, loader_queue=3.5)).own,))

    encoded = msgspec.msgpack.encode(samples)

    assert msgspec.msgpack.decode(encoded, type=NodeSamples) == samples


# Services.

PROGRAMS = (
    NumberedProgram(MAIN, 0, 3),
    NumberedProgram("server", 3, 3),
    NumberedProgram("store", 6, 1),
)
SERVES = window(wait=0.95, compute=0.05, place="serve.py:7 main")
NONE_SLOW = "no rank is slow: they wait 35 %, compute 50 %"


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (
            # A service waits for requests: that says nothing of the main program.
            [WAITS, WAITS, READS, WAITS, WAITS, STARVED, MEETS],
            [
                f"rank 2 is {IT_READS}",
                "server rank 2 waits for a CPU 55 % of the time, the others 0 %: " + THREADS,
            ],
        ),
        # The line in which most replicas are is not a line where they wait for each other.
        ([*[HEALTHY] * 3, MEETS, MEETS, LATE, MEETS], [NONE_SLOW]),
        (
            [HEALTHY, HEALTHY, HEALTHY, SERVES, SERVES, SERVES],
            [
                NONE_SLOW,
                "server: all ranks wait 95 % (serve.py:7 main): communication, or a hang; clusterrun stacks tells which",
            ],
        ),
    ],
    ids=["each by itself", "replicas that serve requests", "a sentence without ranks"],
)
def test_verdicts_with_services(windows: list[WindowSample], expected: list[str]) -> None:
    assert [each.sentence for each in judge(ranks(*windows), PROGRAMS)] == expected


# The function of a DataLoader.


@pytest.mark.parametrize(
    ("windows", "asked"), [(READS, 3), (STARVED, None), (BACKWARD, None), (WAITS, None)]
)
def test_rank_to_ask_again(windows: WindowSample, asked: int | None) -> None:
    assert rank_to_ask_again(judge(ranks(WAITS, WAITS, WAITS, windows))) == asked


PLACES = (
    SampledPlace(Activity.OTHER, "train.py:1 <module>", 0.6),
    SampledPlace(Activity.DATA, "data.py:7 read", 0.1),
    SampledPlace(Activity.DATA, "data.py:9 decode", 0.3),
)


@pytest.mark.parametrize(
    ("again", "place"),
    [
        (rank(3, READS, loader_places=PLACES), "data.py:9 decode"),
        (rank(3, READS), "train.py:88 Samples.__getitem__"),
        (rank(2, READS, loader_places=PLACES), "train.py:88 Samples.__getitem__"),
    ],
    ids=["seen", "nothing seen", "of another rank"],
)
def test_place_of_loaders_is_named(again: SampledRank, place: str) -> None:
    """The function replaces the loop over the DataLoader."""
    [verdict] = judge(ranks(WAITS, WAITS, WAITS, READS), again=[again])

    assert verdict.place == place
    assert f"reading data ({place}), the others" in verdict.sentence
