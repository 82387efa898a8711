"""Samples of ranks, the verdict on them, and its sentence."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from tests.policy.door import (
    MAIN,
    Activity,
    NodeSamples,
    NumberedProgram,
    ProgramVerdict,
    RankSamples,
    SampledNode,
    SampledPlace,
    SlowReport,
    WhyNoStacks,
    WindowSample,
    judge_programs,
    rank_to_ask_again,
    with_loader_place,
)

LOOP = "train.py:50 main"
"""Where ranks are that do what no place is given for."""

STATES = {"do_poll": 0.7, "R": 0.3}


def window(
    *, cpu: float = 0.3, queue: float = 0.0, place: str = LOOP, **shares: float
) -> WindowSample:
    """Return a window with these activities, all of them at one place."""
    activities = {Activity(name): share for name, share in shares.items()}
    places = tuple(SampledPlace(each, place, share) for each, share in activities.items())
    return WindowSample(
        cpu=cpu, queue=queue, states=STATES, samples=100, activities=activities, places=places
    )


Windows = WindowSample | Sequence[WindowSample]
"""One for both windows, or the two."""


def rank(number: int, windows: Windows, **fields: object) -> RankSamples:
    both = (windows, windows) if isinstance(windows, WindowSample) else tuple(windows)
    return msgspec.structs.replace(RankSamples(number, 100 + number, both), **fields)


def node(number: int, *ranks: RankSamples, busy: float = 0.5, by_job: float = 0.5) -> SampledNode:
    return SampledNode(number, f"n{number}", NodeSamples(ranks, 8, busy, by_job, {}))


def alike(count: int, windows: WindowSample, first: int = 0) -> list[RankSamples]:
    return [rank(number, windows) for number in range(first, first + count)]


def sentences(*nodes: SampledNode, programs: Sequence[NumberedProgram] = ()) -> str:
    verdicts = judge_programs(nodes, programs)
    return SlowReport.of("run", programs, nodes, verdicts, ()).summary


WAITS = window(wait=0.6, data=0.04, compute=0.36)
READS = window(wait=0.03, data=0.6, compute=0.37, place="train.py:88 Samples.__getitem__")
HEALTHY = window(wait=0.35, compute=0.4, optimizer=0.1, other=0.15)
STARVED = window(wait=0.05, compute=0.95, cpu=0.3, queue=0.55)
QUOTA = replace(STARVED, throttled=0.51)
MEETS = window(other=0.9, compute=0.1, place="train.py:60 loss.item")
LATE = window(other=0.3, compute=0.7, place="train.py:60 loss.item")
STOPPED = replace(WAITS, states={"T": 1.0})
FULL = replace(HEALTHY, queue=0.35)
PROC = WindowSample(cpu=0.3, queue=0.0, states={"do_poll": 0.95, "R": 0.05})
PROC_LATE = WindowSample(cpu=0.3, queue=0.0, states={"do_poll": 0.3, "pipe_read": 0.6, "R": 0.1})

Case = Callable[[], list[SampledNode]]

CASES: dict[str, tuple[Case, str]] = {
    "one rank reads data": (
        lambda: [node(1, *alike(4, WAITS)), node(2, *alike(1, WAITS, 4), rank(5, READS))],
        (
            "rank 5 (n2) is slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data"
            " (train.py:88 Samples.__getitem__), the others 4 %."
        ),
    ),
    "a host": (
        lambda: [node(1, *alike(2, WAITS)), with_pressure(node(2, *alike(2, READS, 2)))],
        (
            "ranks 2-3, all of n2, are slow: the others wait 60 % of the time, they 3 %. They spend 60 %"
            " reading data (train.py:88 Samples.__getitem__), the others 4 %. On n2, tasks wait for a disk"
            " 57 % of the time, for a CPU 20 % of the time."
        ),
    ),
    "loaders on a disk": (
        lambda: [node(1, *alike(3, WAITS), rank(3, replace(READS, loaders={"D": 0.6, "S": 0.4})))],
        (
            "rank 3 is slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data"
            " (train.py:88 Samples.__getitem__), the others 4 %. Its DataLoader processes wait for a disk"
            " 60 % of the time."
        ),
    ),
    "backward, which is computing": (
        lambda: [node(1, *alike(3, WAITS), rank(3, in_backward()))],
        (
            "rank 3 is slow: the others wait 60 % of the time, it 5 %. It spends 95 % computing"
            " (train.py:70 step), the others 36 %."
        ),
    ),
    "the quota of one rank": (
        lambda: [node(1, *alike(3, replace(WAITS, queue=0.1)), rank(3, QUOTA))],
        (
            "rank 3 waits for a CPU 55 % of the time, the others 10 %: its CPU quota throttles it 51 % of"
            " the time"
        ),
    ),
    "the quota of all ranks, which wait alike": (
        lambda: [node(1, *alike(2, replace(WAITS, throttled=0.4, queue=0.2)))],
        "ranks 0-1 wait for a CPU 20 % of the time: their CPU quota throttles them 40 % of the time",
    ),
    "a quota that held a rank up in one window only": (
        lambda: [node(1, *alike(3, HEALTHY), rank(3, [HEALTHY, replace(HEALTHY, throttled=0.4)]))],
        "no rank is slow: they wait 35 %, compute 50 %",
    ),
    "other processes": (
        lambda: [node(1, *alike(3, WAITS), rank(3, STARVED), busy=0.9, by_job=0.6)],
        (
            "rank 3 waits for a CPU 55 % of the time, the others 0 %: other processes use 30 % of the CPUs"
            " on n1"
        ),
    ),
    "too many threads": (
        lambda: [node(1, *alike(3, WAITS), rank(3, STARVED))],
        (
            "rank 3 waits for a CPU 55 % of the time, the others 0 %: the job has more threads to run on n1"
            " than there are CPUs for it"
        ),
    ),
    "more work on full CPUs": (
        lambda: [node(1, *alike(3, replace(WAITS, cpu=0.1)), rank(3, STARVED))],
        (
            "rank 3 is slow: the others wait 60 % of the time, it 5 %. It spends 95 % computing"
            f" ({LOOP}), the others 36 %."
        ),
    ),
    "loaders without a CPU": (
        lambda: [node(1, *alike(3, WAITS), rank(3, replace(READS, loader_queue=1.8)))],
        (
            "the DataLoader processes of rank 3 wait for a CPU: the job has more threads to run on n1 than"
            " there are CPUs for it"
        ),
    ),
    "none": (
        lambda: [node(1, *alike(2, HEALTHY), rank(2, window(wait=0.31, compute=0.54, other=0.15)))],
        "no rank is slow: they wait 31-35 %, compute 50 %",
    ),
    "a gap that one window has": (
        lambda: [node(1, *alike(3, WAITS), rank(3, [WAITS, READS]))],
        "no rank is slow: they wait 32-60 %, compute 36 %",
    ),
    "windows that name different ranks": (
        lambda: [node(1, *alike(2, WAITS), rank(2, [WAITS, READS]), rank(3, [READS, WAITS]))],
        "not clear: first rank 3, then rank 2; --seconds 30 samples longer",
    ),
    "a rank that one window names beside the slow one": (
        lambda: [node(1, *alike(2, WAITS), rank(2, [WAITS, READS]), rank(3, READS))],
        (
            "rank 3 is slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data"
            " (train.py:88 Samples.__getitem__), the others 4 %."
        ),
    ),
    "each rank is named by some window": (
        lambda: [
            node(
                1,
                *(rank(0, [READS, WAITS, WAITS]), rank(1, [READS, READS, READS])),
                *(rank(2, [WAITS, READS, WAITS]), rank(3, [WAITS, WAITS, READS])),
            )
        ],
        (
            "rank 1 is slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data"
            " (train.py:88 Samples.__getitem__), the others 4 %."
        ),
    ),
    "all read data": (
        lambda: [node(1, *alike(3, window(data=0.45, wait=0.3, compute=0.25)))],
        "all ranks read data 45 % of the time: more DataLoader workers",
    ),
    "all wait": (
        lambda: [node(1, *alike(3, window(wait=0.95, compute=0.05, place="train.py:47 main")))],
        "all ranks wait 95 % (train.py:47 main): communication, or a hang: clusterrun stacks",
    ),
    "full CPUs and no gap": (
        lambda: [node(1, *alike(3, FULL))],
        "overcommitted: ranks lack a CPU 35 % of the time; differences below 30 points mean nothing",
    ),
    "CPUs that other processes use": (
        lambda: [node(1, *alike(3, FULL), busy=1.0, by_job=0.4)],
        (
            "overcommitted: ranks lack a CPU 35 % of the time; differences below 30 points mean nothing;"
            " other processes use 60 % of the CPUs on n1"
        ),
    ),
    "full CPUs and a gap below 30 points": (
        lambda: [node(1, *alike(3, FULL), rank(3, window(wait=0.1, compute=0.9, queue=0.35)))],
        "overcommitted: ranks lack a CPU 35 % of the time; differences below 30 points mean nothing",
    ),
    "GPUs: no rank is seen to wait": (
        lambda: [node(1, *alike(3, MEETS), rank(3, LATE))],
        (
            "rank 3 is slow: the others are 90 % of the time at train.py:60 loss.item, it 30 %. It spends"
            " 70 % computing (train.py:60 loss.item), the others 10 %."
        ),
    ),
    "GPUs: alike": (
        lambda: [
            node(1, *alike(2, MEETS), rank(2, window(other=0.85, place="train.py:60 loss.item")))
        ],
        "no rank is slow: they spend 85-90 % at train.py:60 loss.item, compute 10 %",
    ),
    "GPUs: a rank that never gets there": (
        lambda: [node(1, *alike(3, MEETS), rank(3, window(compute=1.0, place="train.py:70 step")))],
        (
            "rank 3 is slow: the others are 90 % of the time at train.py:60 loss.item, it 0 %. It"
            " spends 100 % computing (train.py:70 step), the others 10 %."
        ),
    ),
    "GPUs: all read data": (
        lambda: [node(1, *alike(3, window(data=0.7, other=0.3)))],
        "all ranks read data 70 % of the time: more DataLoader workers",
    ),
    "two ranks, each at a line of its own": (
        lambda: [node(1, rank(0, MEETS), rank(1, window(other=1.0, place="train.py:7 rest")))],
        (
            "not clear: no rank is seen to wait for others, and there is no line where most of them"
            " are: clusterrun stacks"
        ),
    ),
    "a stopped rank before all else": (
        lambda: [node(1, rank(0, QUOTA), rank(1, READS), *alike(1, WAITS, 2), rank(3, STOPPED))],
        "rank 3 is stopped (kill -CONT 103)",
    ),
    "a rank that has ended": (
        lambda: [
            node(1, *alike(3, HEALTHY), rank(3, HEALTHY, why_no_stacks=WhyNoStacks.ENDED)),
        ],
        "no rank is slow: they wait 35 %, compute 50 %\nrank 3 had ended",
    ),
    "a rank that is not Python": (
        lambda: [node(1, *alike(2, HEALTHY), rank(2, PROC, why_no_stacks=WhyNoStacks.NOT_PYTHON))],
        "no rank is slow: they wait 35 %, compute 50 %\nrank 2 is not judged: not a Python process",
    ),
    "no py-spy": (
        lambda: [
            node(1, *(without_stacks(each) for each in [*alike(3, PROC), rank(3, PROC_LATE)])),
        ],
        (
            "rank 3 differs: 60 % in pipe_read, the others 0 %\n"
            "no py-spy on n1, on its agent's PATH or beside its Python: pip install py-spy there, and"
            " functions are named"
        ),
    ),
    "no py-spy, and nothing differs": (
        lambda: [node(1, *(without_stacks(each, WhyNoStacks.REFUSED) for each in alike(3, PROC)))],
        (
            "no rank differs in what its main thread waits for\n"
            "py-spy may not read ranks 0-2 (n1): in a container, give it the capability SYS_PTRACE"
            " (docker run --cap-add SYS_PTRACE)"
        ),
    ),
    "no py-spy, and one state only": (
        lambda: [
            node(1, *(without_stacks(each) for each in alike(2, replace(PROC, states={"R": 1.0})))),
        ],
        (
            "no rank differs in what its main thread waits for\n"
            "no py-spy on n1, on its agent's PATH or beside its Python: pip install py-spy there, and"
            " functions are named"
        ),
    ),
    "no py-spy, and no states": (
        lambda: [node(1, without_stacks(rank(0, replace(PROC, states={}))))],
        (
            "no rank differs in what its main thread waits for\n"
            "no py-spy on n1, on its agent's PATH or beside its Python: pip install py-spy there, and"
            " functions are named"
        ),
    ),
    "the rank without stacks is the slow one": (
        lambda: [
            node(
                1,
                *(rank(each, replace(WAITS, states=PROC.states)) for each in range(3)),
                without_stacks(rank(3, PROC_LATE), WhyNoStacks.FAILED),
            ),
        ],
        (
            "rank 3 differs: 60 % in pipe_read, the others 0 %\n"
            "no stacks of rank 3 (n1): py-spy: it printed nothing"
        ),
    ),
    "a rank without stacks, and none differs": (
        lambda: [
            node(1, *alike(3, HEALTHY), without_stacks(rank(3, replace(PROC, states=STATES)))),
        ],
        (
            "no rank is slow: they wait 35 %, compute 50 %\n"
            "no py-spy on n1, on its agent's PATH or beside its Python: pip install py-spy there, and"
            " functions are named"
        ),
    ),
    "one rank": (
        lambda: [node(1, rank(0, window(compute=0.6, data=0.3, wait=0.1)))],
        (
            "rank 0 is alone, so there is nothing to compare: it spends 60 % computing, 30 % reading data,"
            " 10 % waiting for other ranks"
        ),
    ),
    "no rank": (lambda: [node(1)], "no rank was sampled"),
    "no node": (list, "no rank was sampled"),
}


def with_pressure(sampled: SampledNode) -> SampledNode:
    pressure = {"memory": 0.05, "cpu": 0.2, "io": 0.57}
    return replace(sampled, samples=replace(sampled.samples, pressure=pressure))


def in_backward() -> WindowSample:
    """Return a rank that computes in backward: its places are those of backward."""
    places = (
        SampledPlace(Activity.BACKWARD, "train.py:70 step", 0.9),
        SampledPlace(Activity.OTHER, LOOP, 0.1),
    )
    return replace(window(wait=0.05, compute=0.95), places=places)


def without_stacks(each: RankSamples, why: WhyNoStacks = WhyNoStacks.MISSING) -> RankSamples:
    return replace(each, why_no_stacks=why)


@pytest.mark.parametrize("case", CASES)
def test_verdict_in_words(case: str) -> None:
    made, expected = CASES[case]

    assert sentences(*made()) == expected


def test_samples_pass_the_wire() -> None:
    """Bounds and keys survive."""
    samples = node(1, rank(0, replace(QUOTA, loader_queue=3.5))).samples

    encoded = msgspec.msgpack.encode(samples)

    assert msgspec.msgpack.decode(encoded, type=NodeSamples) == samples


# Services.

PROGRAMS = (
    NumberedProgram(MAIN, 0, 3),
    NumberedProgram("server", 3, 3),
    NumberedProgram("store", 6, 1),
)


def test_each_program_is_judged_by_itself() -> None:
    """A service waits for requests: that says nothing of the main program."""
    ranks = [*alike(2, WAITS), rank(2, READS), *alike(2, WAITS, 3), rank(5, STARVED)]

    found = sentences(node(1, *ranks, rank(6, MEETS)), programs=PROGRAMS)

    assert found == (
        "rank 2 is slow: the others wait 60 % of the time, it 3 %. It spends 60 % reading data"
        " (train.py:88 Samples.__getitem__), the others 4 %.\n"
        "server rank 2 waits for a CPU 55 % of the time, the others 0 %: the job has more threads to"
        " run on n1 than there are CPUs for it"
    )


def test_replicas_that_serve_requests_are_not_compared() -> None:
    """A line in which most of them are is not a line where they wait for each other."""
    ranks = [*alike(3, HEALTHY), *alike(2, MEETS, 3), rank(5, LATE), rank(6, MEETS)]

    found = sentences(node(1, *ranks), programs=PROGRAMS)

    assert found == "no rank is slow: they wait 35 %, compute 50 %"


def test_a_service_that_waits_is_named() -> None:
    """Its sentence names no ranks."""
    waits = window(wait=0.95, compute=0.05, place="serve.py:7 main")

    found = sentences(node(1, *alike(3, HEALTHY), *alike(3, waits, 3)), programs=PROGRAMS)

    assert found.splitlines()[1] == (
        "server: all ranks wait 95 % (serve.py:7 main): communication, or a hang: clusterrun stacks"
    )


# The function of a DataLoader.


def test_the_loaders_of_a_rank_that_reads_data_are_asked_for() -> None:
    """Only of such a rank."""
    asked = [
        rank_to_ask_again(judge_programs([node(1, *alike(3, WAITS), rank(3, slow))]))
        for slow in (READS, STARVED, in_backward(), WAITS)
    ]

    assert asked == [3, None, None, None]


def test_the_place_of_the_loaders_is_named() -> None:
    """It replaces the loop over the loader; one that shows nothing leaves that."""
    verdicts = judge_programs([node(1, *alike(3, WAITS), rank(3, READS))])
    places = (
        SampledPlace(Activity.OTHER, "train.py:1 <module>", 0.6),
        SampledPlace(Activity.DATA, "data.py:7 read", 0.1),
        SampledPlace(Activity.DATA, "data.py:9 decode", 0.3),
    )
    answers = [rank(3, READS, loader_places=places), rank(3, READS), rank(2, READS)]

    found = [with_loader_place(verdicts, [node(1, each)])[0] for each in answers]
    other = (ProgramVerdict(MAIN, judge_programs([node(1)])[0].verdict),)

    assert [place_in(each) for each in found] == [
        "data.py:9 decode",
        "train.py:88 Samples.__getitem__",
        "train.py:88 Samples.__getitem__",
    ]
    assert with_loader_place(other, [node(1)]) == other


def place_in(verdict: ProgramVerdict) -> str:
    return str(msgspec.to_builtins(verdict)["verdict"]["place"])
