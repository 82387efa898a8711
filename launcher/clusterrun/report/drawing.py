"""Trees and lines drawn by rich: in colours, characters and lines of a width that the output can show."""

import io
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text
from rich.tree import Tree

PLAIN, STRONG, DIM, GOOD, NAME = "", "bold", "dim", "green", "cyan"
"""Styles of cells, as rich names them."""

_WIDEST = 1 << 20
"""Columns of output that is not wrapped."""
_NARROWEST = 20
"""Columns that the branches of a tree leave room for words in."""
_GAP = "  "


class Style(NamedTuple):
    """What the output can show."""

    width: int | None = None
    """Columns; None: lines are not wrapped."""
    colour: bool = False
    unicode: bool = True


class Cell(NamedTuple):
    """A text in one style."""

    text: str
    style: str = PLAIN


class Row(NamedTuple):
    """Cells and the rows below them; rows of one ``kind`` have aligned columns."""

    kind: str
    cells: Sequence[Cell]
    below: Sequence["Row"] = ()


def draw_tree(rows: Sequence[Row], style: Style) -> str:
    """Return a tree whose root is not drawn, without a trailing newline."""
    tree = Tree("", hide_root=True)
    widths: dict[str, list[int]] = {}
    _measure(rows, widths)
    _grow(tree, rows, widths)
    return _render([tree], style) if rows else ""


def draw_lines(lines: Iterable[str], style: Style, ink: str = PLAIN) -> str:
    """Return lines without a trailing newline."""
    return _render([_text(Cell(line, ink)) for line in lines], style)


def _measure(rows: Iterable[Row], widths: dict[str, list[int]]) -> None:
    """Add the width of each column by kind of row; a row's last cell does not count."""
    for row in rows:
        own = [len(cell.text) for cell in row.cells[:-1]]
        known = widths.get(row.kind, [])
        widths[row.kind] = [max(pair) for pair in zip_longest(known, own, fillvalue=0)]
        _measure(row.below, widths)


def _grow(branch: Tree, rows: Iterable[Row], widths: dict[str, list[int]]) -> None:
    for row in rows:
        line = Text(overflow="fold")
        columns = [*widths[row.kind][: len(row.cells) - 1], 0]
        for cell, width in zip(row.cells, columns, strict=True):
            if cell.text or width:
                line.append(_GAP if line else "").append_text(_text(cell))
                line.append(" " * (width - len(cell.text)))
        line.rstrip()
        _grow(branch.add(line), row.below, widths)


def _text(cell: Cell) -> Text:
    # A captured machine may have terminal commands in the name of a GPU.
    printable = "".join(char if char.isprintable() else "?" for char in cell.text)
    return Text(printable, cell.style, overflow="fold")


def _render(parts: Iterable[RenderableType], style: Style) -> str:
    # rich draws branches in ASCII if the encoding has no others.
    encoding = "utf-8" if style.unicode else "ascii"
    file = io.TextIOWrapper(
        io.BytesIO(), encoding=encoding, errors="backslashreplace", write_through=True
    )
    console = Console(
        file=file,
        width=_WIDEST if style.width is None else max(style.width, _NARROWEST),
        force_terminal=style.colour,
        color_system="standard" if style.colour else None,
        no_color=not style.colour,
        force_jupyter=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, markup=False, highlight=False, emoji=False)
    written: bytes = file.detach().getvalue()
    return "\n".join(line.rstrip() for line in written.decode(encoding).splitlines())
