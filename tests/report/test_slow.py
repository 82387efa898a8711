"""``clusterrun slow`` in words, as a table and as values."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from tests.report.door import (
    MAIN,
    Activity,
    Compared,
    DifferingRanks,
    GpuState,
    MissingNode,
    NoCpuCause,
    NodeSamples,
    NumberedProgram,
    RankSamples,
    SampledNode,
    SlowRanks,
    SlowReport,
    SlowVerdict,
    StarvedRanks,
    StoppedRanks,
    WhyNoStacks,
    WindowSample,
    judge_programs,
    named_ranks,
    slow_text,
    verdict_text,
)

SLOW = SlowRanks(
    (3,), ("n1",), False, Compared(0.03, 0.61), Activity.SAVE, Compared(0.5, 0.0), "t.py:7 save"
)
STARVED = StarvedRanks((3,), ("n1",), Compared(0.5, 0.1), NoCpuCause.QUOTA, 0.4)
DIFFERING = DifferingRanks((3,), ("n1",), "do_sys_poll", Compared(0.6, 0.05))

WORDS: dict[str, tuple[SlowVerdict, str]] = {
    "several ranks": (
        replace(SLOW, ranks=(1, 3), hosts=("n1", "n2"), place="", loaders_wait_for_disk=0.6),
        (
            "ranks 1, 3 (n1, n2) are slow: the others wait 61 % of the time, they 3 %. They spend 50 %"
            " saving or loading a checkpoint, the others 0 %. Their DataLoader processes wait for a"
            " disk 60 % of the time."
        ),
    ),
    "several ranks without a CPU": (
        replace(STARVED, ranks=(1, 3), cause=NoCpuCause.OTHERS),
        (
            "ranks 1, 3 (n1) wait for a CPU 50 % of the time, the others 10 %: other processes use 40 %"
            " of the CPUs on n1"
        ),
    ),
    "stopped ranks": (
        StoppedRanks((1, 3), ("n1", "n2"), (11, 13)),
        "ranks 1, 3 (n1, n2) are stopped (kill -CONT 11 13)",
    ),
    "asleep in a function of the kernel": (
        DIFFERING,
        "rank 3 (n1) differs: 60 % in poll, the others 5 %",
    ),
    "on many hosts": (
        replace(DIFFERING, hosts=tuple(f"n{at}" for at in range(1000))),
        "rank 3 (n0, n1, n2, n3, 996 more) differs: 60 % in poll, the others 5 %",
    ),
    "in the kernel": (
        replace(DIFFERING, ranks=(1, 3), state="D"),
        "ranks 1, 3 (n1) differ: 60 % waiting for a disk or a device, the others 5 %",
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_verdicts_in_words(case: str) -> None:
    verdict, expected = WORDS[case]

    assert verdict_text(verdict, named_ranks, several_hosts=True) == expected


WINDOW = WindowSample(
    cpu=0.25,
    queue=0.05,
    states={"R": 1.0},
    samples=100,
    activities={
        Activity.WAIT: 0.5,
        Activity.GPU: 0.1,
        Activity.COMPUTE: 0.3,
        Activity.OPTIMIZER: 0.1,
    },
)
LATER = replace(WINDOW, queue=0.07, throttled=0.05)
RANK = RankSamples(0, 100, (WINDOW, LATER))


def node(number: int, *ranks: RankSamples, ptrace_scope: int | None = None) -> SampledNode:
    return SampledNode(number, f"n{number}", NodeSamples(ranks, 8, 0.5, 0.5, {}, ptrace_scope))


def report_of(
    *nodes: SampledNode,
    programs: tuple[NumberedProgram, ...] = (),
    missing: tuple[MissingNode, ...] = (),
) -> SlowReport:
    return SlowReport.of("run", programs, nodes, judge_programs(nodes, programs), missing)


def test_table_of_ranks() -> None:
    """Shares of the main thread over all windows; a rank without stacks has some; one that ended, none."""
    nodes = [
        node(0, RANK, replace(RANK, rank=1)),
        node(
            1,
            replace(
                RANK,
                rank=2,
                windows=(WindowSample(cpu=0.5, queue=0.0, states={}),),
                why_no_stacks=WhyNoStacks.NOT_PYTHON,
            ),
            RankSamples(3, 103, (), WhyNoStacks.ENDED),
        ),
    ]

    text = slow_text((), nodes, report_of(*nodes))

    assert text.splitlines() == [
        "no rank is slow: they wait 60 %, compute 40 %",
        "rank 2 is not judged: not a Python process",
        "rank 3 had ended",
        "rank  host  wait  data  compute  save  other  CPU   no CPU",
        "0     n0    60 %  0 %   40 %     0 %   0 %    25 %  6 %",
        "1     n0    60 %  0 %   40 %     0 %   0 %    25 %  6 %",
        "2     n1    -     -     -        -     -      50 %  0 %",
    ]


def test_columns_of_gpus() -> None:
    """Of all GPUs of a rank together; none where no GPU has figures. Services have their own ranks."""
    gpus = (GpuState(90, None, None, 61, 400), GpuState(70, None, None, 71, 300))
    programs = (NumberedProgram(MAIN, 0, 1), NumberedProgram("server", 1, 1))
    nodes = [node(0, replace(RANK, gpus=gpus), replace(RANK, rank=1))]

    text = slow_text(programs, nodes, report_of(*nodes, programs=programs)).splitlines()

    assert text[1].endswith("no CPU  GPU use  temperature  power")
    assert text[2].endswith(" 700 W")
    assert " 80 % " in text[2]
    assert " 71 C " in text[2]
    assert text[3].startswith("server 0  n0 ")
    assert text[3].split()[-3:] == ["-", "-", "-"]


def test_nodes_that_did_not_answer_are_named() -> None:
    """Without any answer there is no table."""
    missing = (MissingNode(2, "n2", "does not answer"),)

    text = slow_text((), [], report_of(missing=missing))

    assert text == "no rank was sampled\nnode 2 (n2) does not answer"


@pytest.mark.parametrize(
    ("scope", "cure"),
    [
        (
            None,
            "in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)",
        ),
        (1, "kernel.yama.ptrace_scope is 1; as root: sysctl kernel.yama.ptrace_scope=0"),
        (3, "kernel.yama.ptrace_scope is 3, which can be changed by a reboot only"),
    ],
)
def test_cure_for_a_refused_py_spy(scope: int | None, cure: str) -> None:
    refused = [replace(RANK, rank=at, why_no_stacks=WhyNoStacks.REFUSED) for at in range(2)]

    summary = report_of(node(0, *refused, ptrace_scope=scope)).summary

    assert summary.splitlines()[-1] == f"py-spy may not read ranks 0-1 (n0): {cure}"


def test_few_reasons_are_printed() -> None:
    """Each once, and at most ten; what py-spy prints may have braces."""
    failed = [
        replace(RANK, rank=at, why_no_stacks=WhyNoStacks.FAILED, problem=f"{{odd}} {at // 2}")
        for at in range(24)
    ]

    lines = report_of(node(0, *failed)).summary.splitlines()

    assert lines[1] == "no stacks of ranks 0-1 (n0): py-spy: {odd} 0"
    assert lines[11:] == ["2 other reasons: see --json"]


def test_report_as_json() -> None:
    """What a script needs: the sentences, the verdicts by type, the shares of each rank."""
    report = report_of(node(0, RANK, replace(RANK, rank=1)))

    shown = json.loads(json.dumps(msgspec.to_builtins(report)))

    assert shown["summary"] == "no rank is slow: they wait 60 %, compute 40 %"
    assert shown["verdicts"][0]["program"] == MAIN
    assert shown["verdicts"][0]["verdict"]["type"] == "NoneSlow"
    assert shown["ranks"][0] == {
        "rank": 0,
        "host": "n0",
        "pid": 100,
        "activities": {"wait": 0.5, "gpu": 0.1, "compute": 0.3, "optimizer": 0.1},
        "cpu": 0.25,
        "no_cpu": 0.06,
        "throttled": 0.05,
        "why_no_stacks": None,
        "problem": None,
    }
