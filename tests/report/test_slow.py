"""The text and the JSON of ``clusterrun slow``."""

import json

import msgspec
import pytest
from clusterrun.job.job import MAIN
from clusterrun.machine.machine import GpuState
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.queries import MissingNode
from clusterrun.policy.samples import Activity, NodeSamples, RankSamples, WhyNoStacks, WindowSample
from clusterrun.policy.slow import SampledRank, judge
from clusterrun.report.slow import SlowReport, slow_text
from msgspec.structs import replace

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


def rank(
    number: int, on: int = 0, ptrace_scope: int | None = None, **fields: object
) -> SampledRank:
    own = replace(RankSamples(number, 100 + number, (WINDOW, LATER)), **fields)
    return SampledRank(on, f"n{on}", NodeSamples((), 8, 0.5, 0.5, {}, ptrace_scope), own)


def shown(
    *ranks: SampledRank,
    programs: tuple[NumberedProgram, ...] = (),
    missing: tuple[MissingNode, ...] = (),
) -> list[str]:
    report = SlowReport.of("run", programs, ranks, judge(ranks, programs), missing)
    return slow_text(programs, ranks, report).splitlines()


def test_slow_table() -> None:
    """The shares are means over all windows. A rank without stacks has only CPU shares; an ended rank has no row."""
    proc = (WindowSample(cpu=0.5, queue=0.0, states={}),)
    native = rank(2, 1, windows=proc, why_no_stacks=WhyNoStacks.NOT_PYTHON)
    ended = rank(3, 1, windows=(), why_no_stacks=WhyNoStacks.ENDED)

    assert shown(rank(0), rank(1), native, ended) == [
        "no rank is slow: they wait 60 %, compute 40 %",
        "rank 2 is not analyzed: not a Python process",
        "rank 3 had ended",
        "rank  host  wait  data  compute  save  other  CPU   no CPU",
        "0     n0    60 %  0 %   40 %     0 %   0 %    25 %  6 %",
        "1     n0    60 %  0 %   40 %     0 %   0 %    25 %  6 %",
        "2     n1    -     -     -        -     -      50 %  0 %",
    ]


def test_slow_table_with_gpus() -> None:
    """The GPUs of a rank are combined. Ranks of services have names."""
    gpus = (GpuState(90, None, None, 61, 400), GpuState(70, None, None, 71, 300))
    programs = (NumberedProgram(MAIN, 0, 1), NumberedProgram("server", 1, 1))

    _, heads, first, second = shown(rank(0, gpus=gpus), rank(1), programs=programs)

    assert heads.endswith("no CPU  GPU use  temperature  power")
    assert first.endswith(" 700 W")
    assert " 80 % " in first
    assert " 71 C " in first
    assert second.startswith("server 0  n0 ")
    assert second.split()[-3:] == ["-", "-", "-"]


def test_slow_names_nodes_without_answer() -> None:
    missing = (MissingNode(2, "n2", "does not answer"),)

    assert shown(missing=missing) == ["no rank was sampled", "node 2 (n2) does not answer"]


CONTAINER = "in a container, give it the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"


WHO = "py-spy may not read ranks 0-1 (n0)"
REASONS = {
    "no py-spy on n0, neither on its agent's PATH nor next to its Python; to see function names,"
    " run pip install py-spy there": WhyNoStacks.MISSING,
    "no stacks of ranks 0-1 (n0): py-spy: it printed nothing": WhyNoStacks.FAILED,
    "ranks 0-1 are not analyzed: not a Python process": WhyNoStacks.NOT_PYTHON,
    f"{WHO}: {CONTAINER}": None,
    f"{WHO}: kernel.yama.ptrace_scope is 1; as root: sysctl kernel.yama.ptrace_scope=0": 1,
    f"{WHO}: kernel.yama.ptrace_scope is 3, which can be changed by a reboot only": 3,
}
"""Lines by the reason, or by ptrace_scope if py-spy is refused."""


@pytest.mark.parametrize("line", REASONS)
def test_reason_for_missing_stacks(line: str) -> None:
    """The line also has the fix."""
    case = REASONS[line]
    why, scope = (case, None) if isinstance(case, WhyNoStacks) else (WhyNoStacks.REFUSED, case)

    assert shown(*(rank(at, 0, scope, why_no_stacks=why) for at in range(2)))[1] == line


def test_reasons_are_limited() -> None:
    """Each reason is printed once, and at most ten reasons. The text of py-spy may have braces."""
    lines = shown(
        *(
            rank(at, why_no_stacks=WhyNoStacks.FAILED, problem=f"{{odd}} {at // 2}")
            for at in range(24)
        )
    )

    assert lines[1] == "no stacks of ranks 0-1 (n0): py-spy: {odd} 0"
    assert lines[11] == "2 other reasons: see --json"


def test_slow_report_as_json() -> None:
    ranks = (rank(0), rank(1))
    report = SlowReport.of("run", (), ranks, judge(ranks), ())

    found = json.loads(json.dumps(msgspec.to_builtins(report)))

    assert found["summary"] == "no rank is slow: they wait 60 %, compute 40 %"
    assert found["verdicts"] == [
        {
            "kind": "none slow",
            "sentence": "no rank is slow: they wait 60 %, compute 40 %",
            "ranks": [],
            "hosts": [],
            "activity": None,
            "place": None,
            "program": MAIN,
        }
    ]
    assert found["ranks"][0] == {
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
