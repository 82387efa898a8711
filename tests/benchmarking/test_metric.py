"""Throughput in the forms that scripts print it in."""

import re

import pytest

from tests.benchmarking.door import (
    find_pattern,
    unit_in,
    values_in,
    without_warm_up,
)


@pytest.mark.parametrize(
    ("line", "values", "unit"),
    [
        ("epoch 1/8 loss 0.5, 5123 images/s", [5123.0], "images/s"),
        ("step 10 | 1,234.5 tokens/sec", [1234.5], "tokens/s"),
        ("12.5k tok/s", [12500.0], "tok/s"),
        ("2.5M samples per second", [2.5e6], "samples/s"),
        ("{'train_samples_per_second': 81.25}", [81.25], "samples/s"),
        ("samples/sec: 99", [99.0], "samples/s"),
        ("step 10 tokens/s: 12345", [12345.0], "tokens/s"),
        ("epoch 13 images/s 512.5", [512.5], "images/s"),
        ("512 images/s 0.25 loss", [512.0], "images/s"),
        ("Throughput (per GPU): 17.5", [17.5], "per second"),
        ("iter 20 it/s: 4.5", [4.5], "it/s"),
        ("Throughput: 17.5", [17.5], "per second"),
        (" 50%|##   | 5/10 [00:01<00:01,  4.00it/s]", [4.0], "it/s"),
        (" 50%|##   | 5/10 [00:10<00:10,  2.00s/it]", [0.5], "it/s"),
        ("{'train_steps_per_second': 3}", [3.0], "steps/s"),
    ],
)
def test_common_forms(line: str, values: list[float], unit: str) -> None:
    """Each is read by itself."""
    pattern = find_pattern([f"begin\n{line}\nend\n"])

    assert pattern is not None
    assert values_in(f"begin\n{line}\nend\n", pattern) == values
    assert unit_in([line], pattern) == unit


@pytest.mark.parametrize(
    "text", ["", "loss 0.5", "took 2 s", "10 MB/s", "lr 1e-3 it 5", "Throughput at step 100: 5000"]
)
def test_what_is_no_throughput(text: str) -> None:
    assert find_pattern([text]) is None


def test_work_counts_before_steps() -> None:
    """A step of more ranks may do more work."""
    text = "3.0it/s, 96 samples/s"
    pattern = find_pattern([text])

    assert pattern is not None
    assert values_in(text, pattern) == [96.0]


def test_the_lowest_rank_counts() -> None:
    """Its lines alone: the others print the same, or their own."""
    text = "[rank 3 n1] 7 images/s\n[rank 2 n1] 5 images/s\n[rank 2 n1] 6 images/s\n"
    pattern = find_pattern([text])

    assert pattern is not None
    assert values_in(text, pattern) == [5.0, 6.0]


def test_a_pattern_of_the_user() -> None:
    """The first group is the number; what is none is left out, as is a group that is not there."""
    either = re.compile(r"(\d+) img/s|throughput: (\d+)")
    pattern = re.compile(r"speed=(\S+)")

    assert values_in("speed=4\nspeed=fast\nspeed=nan\nspeed=inf\nspeed=1e3\n", pattern) == [
        4.0,
        1000.0,
    ]
    assert values_in("throughput: 3\n7 img/s\n", either) == [7.0]
    assert values_in("a 3\n", re.compile(r"(?P<seconds>a|b) (?P<unit>\d+)")) == []
    assert unit_in(["speed=4"], pattern) == "per second"


@pytest.mark.parametrize(
    ("count", "warm_up", "left"),
    [(0, None, 0), (1, None, 1), (2, None, 1), (10, None, 8), (10, 0, 10), (3, 5, 1)],
)
def test_warm_up_is_left_out(count: int, warm_up: int | None, left: int) -> None:
    """At least one value stays."""
    values = [float(number) for number in range(count)]

    assert without_warm_up(values, warm_up) == tuple(values[count - left :])
