"""From measured values to the table and the picture."""

import pytest

from tests.benchmarking.door import (
    Benchmark,
    Measured,
    curves,
    draw_throughput,
    ideal_line,
    rows_of,
    throughput_table,
)

MEASURED = (
    Measured("plain", 1, 1, (100.0, 100.0, 110.0)),
    Measured("fast", 1, 1, (200.0,)),
    Measured("plain", 1, 2, (180.0, 170.0, 190.0, 180.0)),
    Measured("fast", 1, 2, (), "exit code 1"),
    Measured("fast", 2, 4, (400.0,)),
)

BENCHMARK = Benchmark("images/s", rows_of(MEASURED), "folder")


def test_speed_up_and_efficiency() -> None:
    """Speed-up is that over the first row, efficiency that over the variant's own smallest size."""
    found = [(row.throughput, row.speed_up, row.efficiency) for row in BENCHMARK.rows]

    assert found == [
        (100.0, 1.0, 1.0),
        (200.0, 2.0, 1.0),
        (180.0, 1.8, 0.9),
        (None, None, None),
        (400.0, 4.0, 0.5),
    ]
    assert [row.spread for row in BENCHMARK.rows[:2]] == [0.05, 0.0]


def test_the_table() -> None:
    """A run that failed has its reason at the end."""
    assert throughput_table(BENCHMARK).splitlines() == [
        "variant  nodes  ranks  images/s  spread  speed-up  efficiency",
        "plain    1      1      100       ±5 %    1.00      100 %",
        "fast     1      1      200       ±0 %    2.00      100 %",
        "plain    1      2      180       ±4 %    1.80      90 %",
        "fast     1      2      -         -       -         -           exit code 1",
        "fast     2      4      400       ±0 %    4.00      50 %",
    ]


def test_the_data_of_the_picture() -> None:
    """A point for each row that has a throughput; the ideal line is that of the first variant."""
    assert curves(BENCHMARK.rows) == {
        "plain": [(1, 100.0, 5.0), (2, 180.0, pytest.approx(7.5))],
        "fast": [(1, 200.0, 0.0), (4, 400.0, 0.0)],
    }
    assert ideal_line(BENCHMARK.rows) == [(1, 100.0), (2, 200.0), (4, 400.0)]


@pytest.mark.long
def test_the_files_of_the_picture() -> None:
    """The same numbers give the same bytes; SVG has its texts as text."""
    svg = draw_throughput(BENCHMARK, "svg")

    assert svg == draw_throughput(BENCHMARK, "svg")
    assert draw_throughput(BENCHMARK, "png").startswith(b"\x89PNG")
    for text in ("ideal", "plain", "fast", "images/s", "ranks"):
        assert f">{text}</text>" in svg.decode()


def test_nothing_measured() -> None:
    """There are no points, and nothing is compared with anything."""
    rows = rows_of([Measured("plain", 1, 1, (), "exit code 1")])

    assert curves(rows) == {}
    assert ideal_line(rows) == ()
