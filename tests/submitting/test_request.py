"""Parsing of time limits, sizes and other values."""

import pytest
from clusterrun.clients.submit import ROWS, Gpus
from clusterrun.errors import UsageError


def read(option: str, text: str) -> object:
    """Parse the value of an option."""
    return ROWS[option].value.read(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2:00:00", 7200), ("1-00:30:00", 88200), ("90m", 5400), ("1d2h3m4s", 93784), ("30s", 30)],
)
def test_time_limits(text: str, seconds: int) -> None:
    """Unambiguous forms are accepted."""
    assert read("time", text) == seconds


@pytest.mark.parametrize("text", ["", "90", "2:30", "0:00:00", "1:60:00", "soon", "1h2", "-1h"])
def test_invalid_time_limits(text: str) -> None:
    """Plain numbers and pairs are refused, because Slurm takes them for minutes, or minutes and seconds."""
    with pytest.raises(UsageError):
        read("time", text)


@pytest.mark.parametrize("text", ["99999999d", "9999999999h", f"{5000 * '9'}m"])
def test_ambiguous_time_limits(text: str) -> None:
    """Python can't parse some of these numbers."""
    with pytest.raises(UsageError, match="is not a time limit") as refused:
        read("time", text)
    assert len(str(refused.value)) < 200
    with pytest.raises(UsageError, match="is not a size of memory"):
        read("memory_per_gpu", f"{5000 * '9'}G")


@pytest.mark.parametrize(
    ("text", "mib"), [("64G", 65536), ("500M", 500), ("1TiB", 1 << 20), ("2gb", 2048)]
)
def test_memory_sizes(text: str, mib: int) -> None:
    """Units are powers of 1024, as in Slurm."""
    assert read("memory_per_gpu", text) == mib


@pytest.mark.parametrize("text", ["", "64", "0G", "64X", "1K"])
def test_invalid_memory_sizes(text: str) -> None:
    """A unit is required."""
    with pytest.raises(UsageError):
        read("memory_per_gpu", text)


def test_values_as_written() -> None:
    """The forms in the help are accepted."""
    assert read("gpus_per_node", "amd.com/gpu:8") == Gpus(8, "amd.com/gpu")
    assert read("gpus_per_node", "h100:8") == Gpus(8, "h100")
    assert str(read("gpus_per_node", "h100:8")) == "h100:8"
    assert str(read("gpus_per_node", "0")) == "0"
