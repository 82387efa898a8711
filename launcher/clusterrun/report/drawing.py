"""Trees of rows for a terminal: cells in columns, wrapped at its width, coloured where it can be."""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple


class Ink(Enum):
    """How a cell is written: an escape sequence's number."""

    PLAIN = ""
    STRONG = "1"
    DIM = "2"
    GOOD = "32"
    NAME = "36"


class Cell(NamedTuple):
    """A text that is not broken where it fits on a line."""

    text: str
    ink: Ink = Ink.PLAIN


class Row(NamedTuple):
    """Cells, and the rows that hang on them; rows of one ``kind`` have their columns aligned."""

    kind: str
    cells: Sequence[Cell]
    below: Sequence["Row"] = ()


class Style(NamedTuple):
    """What the output can show."""

    width: int | None = None
    """Columns; None: lines are as long as they are."""
    colour: bool = False
    unicode: bool = True


class _Branches(NamedTuple):
    """What stands before a row, and before the rows below it, where another follows and where none."""

    more: str
    last: str
    beside: str


_LINES = _Branches("├─ ", "└─ ", "│  ")
_ASCII = _Branches("|- ", "`- ", "|  ")
_BLANK = "   "
_GAP = "  "


def draw(rows: Sequence[Row], style: Style) -> Iterator[str]:
    """Yield the lines of a tree; ``rows`` themselves stand at its edge."""
    rows = [_printable(row) for row in rows]
    widths = _widths(rows)
    for row in rows:
        yield from _wrapped(row, widths, "", "", style)
        yield from _below(row, widths, "", style)


def in_ink(text: str, ink: Ink, style: Style) -> str:
    """Return ``text`` in this ink, where the output has colours."""
    return f"\x1b[{ink.value}m{text}\x1b[0m" if style.colour and ink.value and text else text


def _printable(row: Row) -> Row:
    # What a captured machine calls its GPUs may be meant for the terminal of who looks at it.
    cells = [
        Cell("".join(it if it.isprintable() else "?" for it in c.text), c.ink) for c in row.cells
    ]
    return Row(row.kind, cells, [_printable(child) for child in row.below])


def _below(row: Row, widths: dict[str, list[int]], edge: str, style: Style) -> Iterator[str]:
    branches = _LINES if style.unicode else _ASCII
    for place, child in enumerate(row.below, 1):
        is_last = place == len(row.below)
        before = edge + (branches.last if is_last else branches.more)
        beside = edge + (_BLANK if is_last else branches.beside)
        hanging = beside + (branches.beside if child.below else _BLANK)
        yield from _wrapped(child, widths, before, hanging, style)
        yield from _below(child, widths, beside, style)


def _widths(rows: Iterable[Row]) -> dict[str, list[int]]:
    """Return the width of each column, by the kind of the rows; the last of a row counts for none."""
    widths: dict[str, list[int]] = {}
    for row in rows:
        own = [len(cell.text) for cell in row.cells[:-1]]
        for kind, found in ((row.kind, own), *_widths(row.below).items()):
            known = widths.get(kind, [])
            widths[kind] = [max(pair) for pair in zip_longest(known, found, fillvalue=0)]
    return widths


def _wrapped(
    row: Row, widths: dict[str, list[int]], before: str, hanging: str, style: Style
) -> Iterator[str]:
    """Yield the lines of one row: each cell where it fits, long ones broken at commas and blanks."""
    line, length, is_begun = before, len(before), False
    hanging += _GAP
    for place, cell in enumerate(row.cells):
        is_last = place == len(row.cells) - 1
        if not is_last and not widths[row.kind][place]:
            # A column that is empty throughout.
            continue
        padded = len(cell.text) if is_last else max(len(cell.text), widths[row.kind][place])
        room = None if style.width is None else style.width - len(hanging)
        gap = _GAP if is_begun else ""
        if is_begun and not _fits(length + len(gap) + len(cell.text), style):
            yield line.rstrip()
            line, length, gap = hanging, len(hanging), ""
        *full, rest = _pieces(cell.text, room)
        for piece in full:
            yield line + gap + in_ink(piece, cell.ink, style)
            line, length, gap = hanging, len(hanging), ""
        blanks = " " * (padded - len(rest)) if not full else ""
        line += gap + in_ink(rest, cell.ink, style) + blanks
        length += len(gap) + len(rest) + len(blanks)
        is_begun = True
    yield line.rstrip()


def _fits(length: int, style: Style) -> bool:
    return style.width is None or length <= style.width


def _pieces(text: str, room: int | None) -> list[str]:
    """Return ``text`` in pieces of at most ``room``, broken behind commas and blanks where there are."""
    pieces = []
    while room is not None and len(text) > max(room, 1):
        end = max(text.rfind(",", 0, room), text.rfind(" ", 0, room)) + 1 or max(room, 1)
        pieces.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*pieces, text]
