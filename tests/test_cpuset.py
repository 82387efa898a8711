"""Lists of CPUs, as the kernel writes them and people type them."""

import pytest
from clusterrun.cpuset import CpuSet


@pytest.mark.parametrize(
    ("text", "cpus"), [("", []), ("0-3,8", [0, 1, 2, 3, 8]), ("8,0-1\n", [0, 1, 8]), ("5-5", [5])]
)
def test_a_list(text: str, cpus: list[int]) -> None:
    """In any order, as people type them."""
    assert sorted(CpuSet.parse(text)) == cpus


@pytest.mark.parametrize("text", ["x", "3-1", "-1", "0-65536", "1--2", "0x1", "99999999999"])
def test_no_list(text: str) -> None:
    """Nor a number that no kernel has."""
    with pytest.raises(ValueError, match=r"is not a range of CPUs|invalid literal"):
        CpuSet.parse(text)


def test_a_list_that_takes_no_end() -> None:
    """Of a captured machine: some bytes, packed, name the same CPUs a million times."""
    with pytest.raises(ValueError, match="again and again"):
        CpuSet.parse("0-65535," * 1_000_000)
