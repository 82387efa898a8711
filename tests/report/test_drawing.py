"""Trees of rows, whatever the output can show."""

import pytest
from clusterrun.report.drawing import Cell, Ink, Row, Style, draw, in_ink

TREE = [
    Row(
        "box",
        [Cell("a")],
        [Row("leaf", [Cell("one"), Cell(""), Cell("1,2,3")]), Row("leaf", [Cell("three")])],
    ),
    Row(
        "box",
        [Cell("b")],
        [Row("box", [Cell("c")], [Row("leaf", [Cell("two"), Cell(""), Cell("4")])])],
    ),
]


def test_branches_and_columns() -> None:
    """Rows of a kind are aligned wherever they hang; an empty column takes no room."""
    assert [*draw(TREE, Style())] == [
        "a",
        "├─ one  1,2,3",
        "└─ three",
        "b",
        "└─ c",
        "   └─ two  4",
    ]


def test_branches_in_ascii() -> None:
    """The same with what every terminal has."""
    assert [*draw(TREE, Style(unicode=False))][1:3] == ["|- one  1,2,3", "`- three"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("1,2,3,4,5,6,7", ["1,2,3,", "  4,5,6,", "  7"]),
        ("one two three", ["one", "  two", "  three"]),
        ("abcdefghijklm", ["abcdef", "  ghijkl", "  m"]),
    ],
)
def test_what_is_too_long_goes_on_below(text: str, lines: list[str]) -> None:
    """Behind a comma or a blank, else wherever the line ends."""
    assert [*draw([Row("x", [Cell(text)])], Style(width=8))] == lines


@pytest.mark.parametrize("width", [0, 1, 5])
def test_a_width_of_nothing_ends(width: int) -> None:
    """A terminal may say that it has one column, or none."""
    assert "".join(draw(TREE, Style(width=width))).count("3") == 1


def test_nothing_but_ink_moves_the_cursor() -> None:
    """A capture that somebody sent may have anything for the name of a GPU."""
    rows = [Row("box", [Cell("a")], [Row("leaf", [Cell("H100\x1b[2J\n\rH200")])])]

    assert [*draw(rows, Style())] == ["a", "└─ H100?[2J??H200"]


def test_ink_is_for_terminals() -> None:
    """An empty text has none at all."""
    colour = Style(colour=True)

    assert in_ink("a", Ink.DIM, colour) == "\x1b[2ma\x1b[0m"
    assert in_ink("a", Ink.DIM, Style()) == "a"
    assert in_ink("a", Ink.PLAIN, colour) == "a"
    assert in_ink("", Ink.DIM, colour) == ""
