"""The lines of ``clusterrun watch``, for terminals of all sizes."""

import pytest
from msgspec.structs import replace

from tests.report.door import (
    GpuState,
    JobLook,
    JobStatus,
    MissingNode,
    NodeRanks,
    RankState,
    live_lines,
    shown_nodes,
)

RANK = RankState(0, 0, "running", 100, 60.0, 30.0, 3 << 30, "0", "0-3", "step 5", 0.2)


def status(nodes: int, per_node: int, **frozen: int) -> JobStatus:
    """Return the status of a job; ``rank`` is frozen."""
    answers = tuple(
        NodeRanks(
            node,
            f"n{node}",
            1,
            0,
            "running",
            tuple(
                replace(
                    RANK,
                    rank=node * per_node + local,
                    state="stopped" if frozen.get("rank") == node * per_node + local else "running",
                )
                for local in range(per_node)
            ),
        )
        for node in range(nodes)
    )
    shown = shown_nodes(JobLook(answers, (), ()), None, 0.0)
    return JobStatus("abc", "train.py", nodes, nodes * per_node, 61.0, shown, (), (), None)


def test_a_line_for_each_rank() -> None:
    """The one that does not run stands out."""
    lines = live_lines(status(2, 2, rank=3), 120, 24, "Ctrl-C")

    assert lines[0].text == "abc: 4 of 4 ranks shown, for 1:01: train.py"
    assert lines[1].text.split()[:3] == ["rank", "host", "state"]
    assert [line.text.split()[0] for line in lines[2:6]] == ["0", "1", "2", "3"]
    assert [line.is_bad for line in lines] == [False] * 5 + [True, False]
    assert "step 5" in lines[2].text


def test_nodes_are_folded_in_large_jobs() -> None:
    """A line for each node, with its ranks and their states."""
    lines = live_lines(status(8, 8, rank=9), 120, 24, "Ctrl-C")

    assert len(lines) == 11
    assert lines[3].text.split()[:3] == ["1", "n1", "8-15"]
    assert "7 running, 1 stopped" in lines[3].text
    assert "24 GiB" in lines[3].text
    assert [line.is_bad for line in lines].index(True) == 3


@pytest.mark.parametrize("nodes", [1, 4, 1000])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (20, 5), (5, 1)])
def test_small_terminals(nodes: int, width: int, height: int) -> None:
    """No line is wider, none is too many."""
    job = replace(status(nodes, 8), missing=(MissingNode(9, "n9", "does not answer"),))

    lines = live_lines(job, width, height, "Ctrl-C")

    assert len(lines) <= height
    assert all(len(line.text) <= width for line in lines)


def test_what_does_not_fit_is_counted() -> None:
    """So that none is taken for all."""
    lines = [line.text for line in live_lines(status(1000, 8), 80, 24, "Ctrl-C")]

    assert "... 980 more lines" in lines


def test_columns_are_left_out_for_the_last_line() -> None:
    """In their order, until it has room."""
    gpu = GpuState(80, 60 << 30, 80 << 30, 61, 400)
    answer = NodeRanks(0, "n0", 1, 0, "running", (replace(RANK, gpu_states=(gpu,)),))
    shown = shown_nodes(JobLook((answer,), (), ()), None, 0.0)
    job = replace(status(1, 1), nodes=shown)

    wide, narrow = live_lines(job, 160, 24, "Ctrl-C"), live_lines(job, 90, 24, "Ctrl-C")

    assert wide[1].text.split("  ")[-1] == narrow[1].text.split("  ")[-1] == "last line"
    assert all(head in wide[1].text for head in ("memory", "power", "temperature", "lines/s"))
    assert "GPU use" in narrow[1].text
    assert "temperature" not in narrow[1].text
