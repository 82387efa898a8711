"""How the fields of a subject become options."""

from enum import Enum
from typing import Annotated

import pytest
from clusterrun.job import values
from clusterrun.job.declarations import Option, format_value, rows_of
from clusterrun.job.values import number
from msgspec import Struct


class Colour(Enum):
    """A choice."""

    RED = "red"


class Retrying(Struct, frozen=True):
    """A subject with an option of each kind, and a field that is not an option."""

    retry_count: Annotated[
        int, number("a number of retries"), Option("How often", aliases=("tries",), metavar="K")
    ] = 3
    pause: Annotated[float | None, values.SECONDS, Option("How long", default="none")] = None
    quick: Annotated[bool, Option("At once")] = False
    tried: int = 0


def test_rows_of_a_subject() -> None:
    rows = rows_of(Retrying)

    assert list(rows) == ["retry_count", "pause", "quick"]
    assert (rows["retry_count"].names, rows["retry_count"].flag) == (
        ("retry_count", "tries"),
        "--retry-count",
    )
    assert [row.metavar for row in rows.values()] == ["K", "SECONDS", ""]
    assert [row.default_text for row in rows.values()] == ["3", "", "false"]
    assert rows["quick"].value.read("yes") is True


def test_option_without_a_value_kind_is_an_error() -> None:
    """A union hides the kind of its member."""

    class Hidden(Struct, frozen=True):
        pause: Annotated[values.Seconds | None, Option("How long")] = None

    with pytest.raises(TypeError, match=r"Hidden\.pause: write Annotated\[TYPE, VALUE, Option"):
        rows_of(Hidden)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (True, "true"), (False, "false"), (25.0, "25"), (0.5, "0.5"), (Colour.RED, "red")],
)
def test_format_value(value: object, text: str) -> None:
    """Values look as in a job file."""
    assert format_value(value) == text
