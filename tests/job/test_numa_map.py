"""How --numa-map is typed."""

from pathlib import Path

import pytest

from tests.job.door import OPTIONS, CpuSet, MappedGpu, UsageError

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
def test_entries(text: str, entries: list[MappedGpu]) -> None:
    """A GPU, and a node or a list of CPUs, which has commas of its own."""
    assert list(numa_map(text)) == entries


def test_a_file(tmp_path: Path) -> None:
    """A line for each, with comments."""
    path = tmp_path / "gpus"
    path.write_text("# wrong in the BIOS\n0=node 1  # the first\n\n1=0-3,8\n")

    assert numa_map(str(path)) == numa_map("0=node 1,1=0-3,8")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0=", "'' is neither a list of CPUs nor node N"),
        ("0=3-1", "'3-1' is neither a list of CPUs nor node N"),
        ("0=all", "'all' is neither a list of CPUs nor node N"),
        ("0=0-99999999999", "'0-99999999999' is neither a list of CPUs nor node N"),
        ("0=node x", "'node x' is neither a list of CPUs nor node N"),
        ("=1", "'=1' has no GPU before the ="),
        ("3,0=1", "'3' names no GPU"),
        ("0=1,0=2", "GPU 0 is listed twice"),
        ("/no/such/file", "'/no/such/file' cannot be read: No such file or directory"),
        ("", "the path is empty"),
    ],
)
def test_mistakes(text: str, complaint: str) -> None:
    """Each has its sentence and what to write instead."""
    with pytest.raises(UsageError) as caught:
        numa_map(text)

    assert caught.value.message == complaint
    assert caught.value.hint


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    """And an empty one is no map."""
    path = tmp_path / "gpus"
    path.write_text("0=x\n")
    with pytest.raises(UsageError, match=f"in {path}: 'x' is neither"):
        numa_map(str(path))
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="there are no entries"):
        numa_map(str(path))
