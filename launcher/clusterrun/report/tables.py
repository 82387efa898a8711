"""Tables as text, and times and sizes in their cells."""

from collections.abc import Container, Iterable, Mapping, Sequence

from clusterrun.bounds import counted
from clusterrun.errors import printable

EMPTY = "-"
"""The cell of a value that is unknown or not there."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the rows with aligned columns, each as wide as its widest cell.

    rich's tables wrap cells in narrow terminals, and take seconds for thousands of workers.
    """
    table = [[*map(printable, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def table(
    heads: Sequence[str], rows: Sequence[Mapping[str, str]], if_known: Container[str] = ()
) -> list[str]:
    """Return the aligned heads and rows.

    Columns of ``if_known`` are omitted if they are ``EMPTY`` in all rows.
    """
    shown = [
        head for head in heads if head not in if_known or any(row[head] != EMPTY for row in rows)
    ]
    return aligned([shown, *([row[head] for head in shown] for row in rows)])


def listed(values: Iterable[object]) -> str:
    """Return "0,1", or ``EMPTY`` if there are no values."""
    return ",".join(map(str, values)) or EMPTY


def duration(seconds: float) -> str:
    """Return "7 s", "1:02" (minutes), "3:01:02" or "2 days 3:01:02"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    days, hours = divmod(hours, 24)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    if not days and not hours:
        return clock.lstrip("0")
    return f"{counted(days, 'day')} {hours}:{clock}" if days else f"{hours}:{clock}"


def size(count: float) -> str:
    """Return a number of bytes as "512 B", "1.5 GiB" or "12 GiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.0f} {_UNITS[unit]}" if count >= 10 else f"{count:.1f} {_UNITS[unit]}"
