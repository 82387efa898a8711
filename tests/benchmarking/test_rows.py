"""From measured values to the table and the picture."""

import pytest

from tests.benchmarking.door import (
    Benchmark,
    Case,
    compare,
    curves,
    draw,
    ideal_lines,
    table,
)

MEASURED = {
    Case("plain", 1, 1): (100.0, 100.0, 110.0),
    Case("fast", 1, 1): (200.0,),
    Case("plain", 1, 2): (180.0, 170.0, 190.0, 180.0),
    Case("fast", 1, 2): (),
    Case("fast", 2, 2): (400.0,),
}

BENCHMARK = Benchmark("images/s", compare(MEASURED, {Case("fast", 1, 2): "exit code 1"}), "folder")


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
    assert table(BENCHMARK).splitlines() == [
        "variant  nodes  ranks  images/s  spread  speed-up  efficiency",
        "plain    1      1      100       ±5 %    1.00      100 %",
        "fast     1      1      200       ±0 %    2.00      100 %",
        "plain    1      2      180       ±4 %    1.80      90 %",
        "fast     1      2      -         -       -         -           exit code 1",
        "fast     2      4      400       ±0 %    4.00      50 %",
    ]


def test_the_data_of_the_picture() -> None:
    """A point for each row with a throughput; an ideal line for each variant, from its first size."""
    assert curves(BENCHMARK.rows) == {
        "plain": [(1, 100.0, 5.0), (2, 180.0, pytest.approx(7.5))],
        "fast": [(1, 200.0, 0.0), (4, 400.0, 0.0)],
    }
    assert ideal_lines(BENCHMARK.rows) == {
        "plain": [(1, 100.0), (2, 200.0), (4, 400.0)],
        "fast": [(1, 200.0), (2, 400.0), (4, 800.0)],
    }


def test_a_variant_that_begins_later() -> None:
    """Its ideal line begins at its own first size."""
    rows = compare(
        {Case("a", 1, 1): (10.0,), Case("b", 1, 2): (12.0,), Case("b", 1, 4): (18.0,)}, {}
    )

    assert ideal_lines(rows)["b"] == [(2, 12.0), (4, 24.0)]


def test_numbers_to_doubt_have_a_remark() -> None:
    """A wide spread, and more than each rank of the smallest size has done; each once."""
    measured = {
        Case("a", 1, 1): (10.0, 20.0, 34.0),
        Case("b", 1, 1): (10.0, 20.0, 34.0),
        Case("a", 2, 2): (100.0,) * 5,
    }
    rows = compare(measured, {})

    wide, same, high = (row.remark for row in rows)
    assert wide.startswith("a wide spread (from 3 numbers only): ")
    assert same == wide
    assert high.startswith("a high efficiency: 1 rank (from 3 numbers only) may have been slow")
    assert table(Benchmark("images/s", rows, "folder")).splitlines()[4:] == [
        "",
        f"a, 1 rank; b, 1 rank: {wide}",
        f"a, 4 ranks on 2 nodes: {high}",
    ]


def test_usual_numbers_have_no_remark() -> None:
    assert {row.remark for row in BENCHMARK.rows} == {""}


@pytest.mark.long
def test_the_files_of_the_picture() -> None:
    """The same numbers give the same bytes; SVG has its texts as text."""
    svg = draw(BENCHMARK, "svg")

    assert svg == draw(BENCHMARK, "svg")
    assert draw(BENCHMARK, "png").startswith(b"\x89PNG")
    for text in ("ideal", "plain", "fast", "images/s", "ranks"):
        assert f">{text}</text>" in svg.decode()


def test_nothing_measured() -> None:
    """There are no points, and nothing is compared with anything."""
    rows = compare({Case("plain", 1, 1): ()}, {Case("plain", 1, 1): "exit code 1"})

    assert curves(rows) == {}
    assert ideal_lines(rows) == {}
