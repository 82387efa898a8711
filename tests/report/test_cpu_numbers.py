"""Sets of CPUs in as few letters as people can read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.door import (
    CpuSet,
    siblings,
    strided,
)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((3,), "3"),
        ((0, 1, 2, 5, 7), "0-2,5,7"),
        ((0, 2), "0,2"),
        (range(0, 32, 2), "0-30:2"),
        ((0, 4, 8, 9, 10), "0-8:4,9-10"),
    ],
)
def test_runs_and_strides(numbers: range, text: str) -> None:
    """Taskset takes the same form."""
    assert strided(numbers) == text


@given(st.sets(st.integers(0, 300)))
def test_no_number_is_lost(numbers: set[int]) -> None:
    """None is added, either."""
    found: set[int] = set()
    for part in filter(None, strided(numbers).split(",")):
        run, _, step = part.partition(":")
        low, _, high = run.partition("-")
        found |= {*range(int(low), int(high or low) + 1, int(step or 1))}

    assert found == numbers


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        (["0", "1", "2"], "0-2"),
        ([f"{core},{core + 128}" for core in range(16)], "0-15+128-143"),
        (["0-3", "4-7", "8-11"], "0-11"),
        ([f"{core},{core + 40}" for core in range(0, 20, 2)], "0-18:2+40-58:2"),
        (["0-1", "2-3", "16", "17"], "0-3,16-17"),
        (["0,8", "1,9", "4"], "4,0-1+8-9"),
    ],
)
def test_siblings_stand_together(cores: list[str], text: str) -> None:
    """There are as many lists as a core has CPUs, unless siblings are adjacent."""
    assert siblings(CpuSet.parse(core) for core in cores) == text
