"""The entries of --numa-map."""

from pathlib import Path

import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.options import OPTIONS
from clusterrun.job.values import MappedGpu

numa_map = OPTIONS["numa_map"].value.read


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("0=node 1", [MappedGpu("0", 1)]),
        ("0=node1, 1=0-3,8", [MappedGpu("0", 1), MappedGpu("1", CpuSet.parse("0-3,8"))]),
        (
            "0000:17:00.0=4,GPU-a=5",
            [MappedGpu("0000:17:00.0", CpuSet((4,))), MappedGpu("GPU-a", CpuSet((5,)))],
        ),
    ],
)
def test_entries_of_a_text(text: str, entries: list[MappedGpu]) -> None:
    """An entry has a GPU, and a NUMA node or a list of CPUs, which may contain commas."""
    assert list(numa_map(text)) == entries


def test_entries_of_a_file(tmp_path: Path) -> None:
    """A file has one entry per line, and comments."""
    path = tmp_path / "gpus"
    path.write_text("# wrong in the BIOS\n0=node 1  # the first\n\n1=0-3,8\n")

    assert numa_map(str(path)) == numa_map("0=node 1,1=0-3,8")


def test_wrong_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gpus"
    path.write_text("0=x\n")
    with pytest.raises(UsageError, match=f"in {path}: 'x' is neither"):
        numa_map(str(path))
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="there are no entries"):
        numa_map(str(path))
