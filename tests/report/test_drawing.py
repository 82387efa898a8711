"""Trees of rows and lines, whatever the output can show."""

from typing import Any

import pytest

from tests.report.door import (
    DIM,
    PLAIN,
    Cell,
    Row,
    Style,
    draw_lines,
    draw_tree,
)

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


def drawn(rows: list[Row], **style: Any) -> list[str]:
    return draw_tree(rows, Style(**style)).splitlines()


def test_branches_and_columns() -> None:
    """Rows of a kind are aligned wherever they are; an empty column takes no room."""
    assert drawn(TREE) == [
        "a",
        "├── one  1,2,3",
        "└── three",
        "b",
        "└── c",
        "    └── two  4",
    ]


def test_branches_in_ascii() -> None:
    """Every terminal has these characters."""
    assert drawn(TREE, unicode=False)[1:3] == ["+-- one  1,2,3", "`-- three"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four five six", ["one two three four", "five six"]),
        ("abcdefghijklmnopqrstuvwxyz", ["abcdefghijklmnopqrst", "uvwxyz"]),
    ],
)
def test_what_is_too_long_goes_on_below(text: str, lines: list[str]) -> None:
    """A line is broken at a blank, else where it ends."""
    assert drawn([Row("x", [Cell(text)])], width=20) == lines
    assert draw_lines([text], Style(width=20)).splitlines() == lines


@pytest.mark.parametrize("width", [0, 1, 5])
def test_a_width_of_nothing_ends(width: int) -> None:
    """A terminal may report one column, or none."""
    assert "".join(drawn(TREE, width=width)).count("3") == 1


def test_nothing_but_ink_moves_the_cursor() -> None:
    """A captured machine may have any text as the name of a GPU."""
    rows = [Row("box", [Cell("a")], [Row("leaf", [Cell("H100\x1b[2J\n\rH200")])])]

    assert drawn(rows) == ["a", "└── H100?[2J??H200"]


def test_markup_is_text() -> None:
    """Brackets are CPUs that a process may not use, and no colours."""
    assert draw_lines(["[bold]0-3[/bold] :smile:"], Style()) == "[bold]0-3[/bold] :smile:"


def test_ink_is_for_terminals() -> None:
    """An empty text has no colour sequences."""
    colour = Style(colour=True)

    assert draw_lines(["a"], colour, DIM) == "\x1b[2ma\x1b[0m"
    assert draw_lines(["a"], Style(), DIM) == "a"
    assert draw_lines(["a"], colour, PLAIN) == "a"
    assert draw_lines([""], colour, DIM) == ""


def test_variables_of_the_launcher_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller decides on width and colours, and rich reads no variables instead."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "JUPYTER_COLUMNS"):
        monkeypatch.setenv(name, "1")

    assert draw_lines(["one two"], Style(), DIM) == "one two"
    assert draw_lines(["one two"], Style(colour=True), DIM) == "\x1b[2mone two\x1b[0m"
