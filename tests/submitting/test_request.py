"""Parsing of time limits, sizes and other values."""

import pytest
from clusterrun.clients.submit import ROWS, Gpus
from clusterrun.errors import UsageError

NINES = 5000 * "9"
"""Python refuses to parse a number of so many digits."""


def read(option: str, text: str) -> object:
    """Parse the value of an option."""
    return ROWS[option].value.read(text)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("time", "2:00:00", 7200),
        ("time", "1-00:30:00", 88200),
        ("time", "90m", 5400),
        ("time", "1d2h3m4s", 93784),
        ("time", "30s", 30),
        ("memory_per_gpu", "64G", 65536),
        ("memory_per_gpu", "500M", 500),
        ("memory_per_gpu", "1TiB", 1 << 20),
        ("memory_per_gpu", "2gb", 2048),
        ("gpus_per_node", "amd.com/gpu:8", Gpus(8, "amd.com/gpu")),
        ("gpus_per_node", "h100:8", Gpus(8, "h100")),
        ("gpus_per_node", "3090:8", Gpus(8, "3090")),
        ("gpus_per_node", "1g.10gb:2", Gpus(2, "1g.10gb")),
        ("gpus_per_node", "0", Gpus(0)),
    ],
)
def test_values(option: str, text: str, value: object) -> None:
    """Units of memory are powers of 1024, as in Slurm."""
    assert read(option, text) == value


@pytest.mark.parametrize("text", ["h100:8", "0"])
def test_gpus_are_written_as_typed(text: str) -> None:
    assert str(read("gpus_per_node", text)) == text


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("time", text) for text in ("", "0:00:00", "1:60:00", "soon", "1h2", "-1h")),
        # Slurm takes these for minutes, or minutes and seconds.
        *(("time", text) for text in ("90", "2:30")),
        *(("time", text) for text in ("99999999d", "9999999999h", f"{NINES}m")),
        *(("memory_per_gpu", text) for text in ("", "64", "0G", "64X", "1K", f"{NINES}G")),
    ],
)
def test_invalid_values(option: str, text: str) -> None:
    """The message has the beginning of the value."""
    with pytest.raises(UsageError, match=r"is not a (time limit|size of memory)") as refused:
        read(option, text)
    assert len(str(refused.value)) < 200
