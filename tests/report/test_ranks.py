"""Running jobs as tables and as data."""

from pathlib import Path
from textwrap import indent

import pytest
from clusterrun.machine.machine import GpuState
from clusterrun.network.requests import Description
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.answers import NodeRanks, RankState
from clusterrun.policy.queries import Answer, Answers, EndOfAnswers, MissingNode
from clusterrun.report.ranks import JobStatus, ps_text, status_text
from clusterrun.report.tables import duration
from msgspec.msgpack import encode
from msgspec.structs import replace

RANK = RankState(0, 0, "running", 100, 60.0, 30.0, 3 << 30, "0", "0-3", "step 5", 0.2)
JOB = Description("abc", "n0", 10, 0, 1, "train.py", ranks=1, running_for=1.0)


def node(rank: int, *ranks: RankState) -> Answer:
    return Answer(1, rank, f"n{rank}", encode(NodeRanks(10, 0, "running", ranks)))


def answered(*nodes: Answer) -> Answers:
    return Answers(nodes, EndOfAnswers(1))


def test_cpu_use_between_two_answers() -> None:
    """A rank with a new process has no CPU use yet."""
    first = answered(node(0, RANK, replace(RANK, rank=1, pid=101)))
    second = answered(
        node(0, replace(RANK, cpu_seconds=31.0), replace(RANK, rank=1, pid=102, cpu_seconds=1.0))
    )

    [shown] = JobStatus.of(JOB, first, second, 0.5).nodes
    [once] = JobStatus.of(JOB, first).nodes

    assert [rank.cpu_use for rank in shown.ranks] == [2.0, None]
    assert [rank.cpu_use for rank in once.ranks] == [None, None]


def test_lines_per_second_between_two_answers() -> None:
    """A rank with a new process or without captured output has none."""
    first = answered(node(0, *(replace(RANK, rank=rank, lines=100) for rank in range(3))))
    second = answered(
        node(
            0,
            replace(RANK, lines=110),
            replace(RANK, rank=1, quiet_for=None),
            replace(RANK, rank=2, pid=102, lines=4),
        )
    )

    [shown] = JobStatus.of(JOB, first, second, 0.5).nodes

    assert [rank.lines_per_second for rank in shown.ranks] == [20.0, None, None]


def test_gpu_columns() -> None:
    """The GPUs of a rank are combined. Columns without any figure are omitted."""
    gpus = (GpuState(90, 60 << 30, 80 << 30, 61, 400), GpuState(70, 20 << 30, 80 << 30, 55, 300))
    ranks = (replace(RANK, gpu_states=gpus), replace(RANK, rank=1))
    silent = replace(RANK, gpu_states=(GpuState(None, 1 << 30, None, None, None),))

    text = [status_text(status_of(node(0, *it)), None) for it in (ranks, (silent,), (RANK,))]

    assert text[0].splitlines()[1].split("  ")[-8:] == [
        *("memory", " GPU use", "GPU memory", "temperature", "power", "lines/s", "quiet for"),
        "last line",
    ]
    assert " 80 %     80 GiB      61 C         700 W  " in text[0].splitlines()[2]
    assert " -        -           -            -      " in text[0].splitlines()[3]
    assert "GPU memory" in text[1]
    assert "temperature" not in text[1]
    assert "GPU use" not in text[2]


def status_of(*nodes: Answer) -> JobStatus:
    """Return the status by one answer of each node."""
    return JobStatus.of(JOB, answered(*nodes))


@pytest.mark.parametrize(
    ("quiet", "behind"),
    [
        ((0.1, 60.0, 0.2), 1),
        ((58.0, 60.0, 59.0), None),
        ((0.1, 3.0, 0.1), None),
        ((None, 60.0, None), None),
        ((None, 0.1, 30.0), 2),
    ],
)
def test_rank_behind(quiet: tuple[float | None, ...], behind: int | None) -> None:
    """A rank is behind if only it has been quiet for long."""
    ranks = [replace(RANK, rank=rank, quiet_for=seconds) for rank, seconds in enumerate(quiet)]

    assert status_of(node(0, *ranks)).behind == behind


def test_status_with_services() -> None:
    """Their ranks have names, and a quiet service is not behind."""
    programs = (NumberedProgram("main", 0, 2), NumberedProgram("server", 2, 1))
    described = replace(JOB, ranks=2, programs=programs)
    quiet = enumerate((0.1, 0.2, 600.0))
    ranks = [replace(RANK, rank=rank, quiet_for=seconds) for rank, seconds in quiet]

    status = JobStatus.of(described, answered(node(0, *ranks)))

    assert status.behind is None
    rows = status_text(status, None).splitlines()[2:]
    assert [row.split("  ")[0] for row in rows] == ["0", "1", "server 0"]


def test_status_table() -> None:
    """Last lines are cut to the width. Problems are above the table, where watch(1) shows them."""
    stopped = replace(
        RANK, rank=1, state="stopped", gpus="", cpus="", memory=0, quiet_for=None, last_line=""
    )
    missing = (MissingNode(2, "n2", "does not answer"),)
    described = replace(JOB, nodes=3, ranks=6, running_for=3661.0)
    answers = Answers((node(0, RANK), node(1, stopped)), EndOfAnswers(1, missing, 0, ("n7",)))
    status = replace(JobStatus.of(described, answers), behind=1)

    lines = status_text(status, None).splitlines()

    assert lines == [
        "run abc: train.py, attempt 0, running, 3 nodes, 6 ranks, for 1:01:01",
        "rank 1 is behind: it has gone longest without printing",
        "node 2 (n2) does not answer",
        "waiting to join: n7",
        "rank  node  host  state    pid  GPU  CPUs       CPU use  memory   lines/s  quiet for  last line",
        "0     0     n0    running  100  0    0-3        -        3.0 GiB  -        0 s        step 5",
        "1     1     n1    stopped  100  -    not bound  -        -        -        -",
    ]
    page = Path(__file__).parent.parent.parent / "docs/looking_inside.md"
    assert indent("\n".join(lines), "    ") in page.read_text()
    assert all(len(line) <= 60 for line in status_text(status, 60).splitlines()[4:])
    late = "USR1: waiting for rank 1 to save"
    assert status_text(replace(status, suspension=late), None).splitlines()[4] == late


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (7.9, "7 s"),
        (62, "1:02"),
        (3600, "1:00:00"),
        (90061, "1 day 1:01:01"),
        (2 * 86400, "2 days 0:00:00"),
    ],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_tables_in_80_columns() -> None:
    """The least important columns are hidden to make room for the last one."""
    ranks = [
        replace(RANK, rank=rank, last_line="epoch 3, step 1200, loss 2.1187") for rank in (0, 1)
    ]
    status = status_of(node(0, *ranks))
    program = "/home/me/projects/model/train.py"
    agent = Description(
        "20261125-200000-12345", "h", 123456, 0, 64, program, ranks=512, running_for=3661.0
    )

    table = status_text(status, 80).splitlines()[1:]
    listed = ps_text([agent], 80).splitlines()

    assert all(line.endswith("epoch 3, step 1200, loss 2.1187") for line in table[1:])
    assert listed[1].endswith("123456  train.py")
    assert max(map(len, [*table, *listed])) <= 80
    assert ps_text([agent], None).endswith(program)


def test_columns_are_hidden_for_the_last_line() -> None:
    gpu = GpuState(80, 60 << 30, 80 << 30, 61, 400)
    job = status_of(node(0, replace(RANK, gpu_states=(gpu,))))

    wide, narrow = (status_text(job, width).splitlines()[1] for width in (180, 100))

    assert wide.split("  ")[-1] == narrow.split("  ")[-1] == "last line"
    assert all(head in wide for head in ("memory", "power", "temperature", "lines/s"))
    assert "GPU use" in narrow
    assert "temperature" not in narrow
