"""How options are declared, and that those of clusterrun hold together."""

from enum import Enum
from typing import Annotated

import pytest
from clusterrun.job import values
from clusterrun.job.declarations import Option, format_value, rows_of
from clusterrun.job.values import number
from msgspec import Struct


class Colour(Enum):
    """A choice for a test."""

    RED = "red"


class Retrying(Struct, frozen=True):
    """A subject with an option of each kind, and a field that is none."""

    retry_count: Annotated[
        int, number("a number of retries"), Option("How often", aliases=("tries",), metavar="K")
    ] = 3
    pause: Annotated[float | None, values.SECONDS, Option("How long", default="none")] = None
    quick: Annotated[bool, Option("At once")] = False
    tried: int = 0


def test_a_field_is_an_option() -> None:
    """With the name, the default and the notes of its annotation."""
    rows = rows_of(Retrying)

    assert list(rows) == ["retry_count", "pause", "quick"]
    assert (rows["retry_count"].names, rows["retry_count"].flag) == (
        ("retry_count", "tries"),
        "--retry-count",
    )
    assert [row.metavar for row in rows.values()] == ["K", "SECONDS", ""]
    assert [row.default_text for row in rows.values()] == ["3", "", "false"]
    assert rows["quick"].value.read("yes") is True


def test_an_option_without_a_kind_of_value_is_refused() -> None:
    """Nothing else would say what its texts mean; a union hides the kind of its part."""

    class Hidden(Struct, frozen=True):
        pause: Annotated[values.Seconds | None, Option("How long")] = None

    with pytest.raises(TypeError, match=r"Hidden\.pause: write Annotated\[TYPE, VALUE, Option"):
        rows_of(Hidden)


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (True, "true"), (False, "false"), (25.0, "25"), (0.5, "0.5"), (Colour.RED, "red")],
)
def test_defaults_are_spelled_as_typed(value: object, text: str) -> None:
    """Booleans, times and words of a choice read as in a job file."""
    assert format_value(value) == text
