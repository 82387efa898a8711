"""Distances of NUMA nodes: one line where there is a pattern, a table where there is none."""

import pytest

from tests.report.door import (
    CpuSet,
    NumaNode,
    describe_distances,
)


def nodes(*rows: str, ids: tuple[int, ...] = ()) -> list[NumaNode]:
    numbers = ids or tuple(range(len(rows)))
    return [
        NumaNode(number, CpuSet(), dict(zip(numbers, map(int, row.split()), strict=False)))
        for number, row in zip(numbers, rows, strict=True)
    ]


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (("10",), []),
        (("10 21", "21 10"), []),
        (("10 21 21", "21 10 21", "21 21 10"), []),
        (("10", "21 10"), []),
        (
            ("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10"),
            ["12 within 0-1 and within 2-3; 32 otherwise"],
        ),
        (
            ("10 12 20 32", "12 10 20 32", "20 20 10 32", "32 32 32 10"),
            ["12 within 0-1; 20 within 0-2; 32 otherwise"],
        ),
        (
            ("10 16 22", "16 10 16", "22 16 10"),
            ["   0  1  2", "0 10 16 22", "1 16 10 16", "2 22 16 10"],
        ),
        (
            ("10 16 22", "22 10 22", "22 22 10"),
            ["   0  1  2", "0 10 16 22", "1 22 10 22", "2 22 22 10"],
        ),
    ],
)
def test_distances_in_few_words(rows: tuple[str, ...], lines: list[str]) -> None:
    """There is no line if all are equal or some are unknown."""
    assert describe_distances(nodes(*rows)) == lines


def test_a_table_that_fits_no_screen_is_left_out() -> None:
    """Four GH200 have 36 nodes."""
    count = 36
    rows = [" ".join(str(10 + abs(one - it)) for it in range(count)) for one in range(count)]

    assert describe_distances(nodes(*rows)) == ["11 to 45, without a pattern; see --json"]


def test_ids_are_labels() -> None:
    """A POWER9 whose GPUs are nodes has such ids."""
    found = nodes("10 40 80", "40 10 80", "80 80 10", ids=(0, 8, 255))

    assert describe_distances(found) == ["40 within 0,8; 80 otherwise"]
