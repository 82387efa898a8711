"""How options are declared, and that those of clusterrun hold together."""

import re
from collections import Counter
from enum import Enum
from typing import Annotated, get_type_hints

import msgspec
import pytest
from msgspec import Struct

from tests.job.door import (
    OPTIONS,
    OPTIONS_OF_COMMANDS,
    SUBJECTS,
    Option,
    Row,
    flag,
    number,
    rows_of,
    spell,
    title_of,
    values,
)


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
    assert spell(value) == text


def test_flag_has_dashes() -> None:
    """The name in snake_case becomes the long flag."""
    assert flag("nproc_per_node") == "--nproc-per-node"


def test_names_are_unique() -> None:
    """No name, alias or letter means two options of a job."""
    letters = [row.option.short for row in OPTIONS.values() if row.option.short]
    names = [name for row in OPTIONS.values() for name in row.names]

    assert max(Counter([*names, *letters]).values()) == 1


ROWS = [*OPTIONS.values(), *OPTIONS_OF_COMMANDS.values()]
each_row = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])


@each_row
def test_defaults_can_be_typed(row: Row) -> None:
    """A default that is shown as text is what the text says, and any other is described in words."""
    text = row.default_text

    assert row.option.default if not text else row.value.read(text) == row.default


@each_row
def test_a_value_has_the_type_of_its_field(row: Row) -> None:
    """No type checker ties the reader of a text to the field; the default's text stands for all."""
    if row.option.default or row.value.repeated:
        return
    hint = get_type_hints(row.subject, include_extras=False)[row.name]

    assert msgspec.convert(row.value.read(row.default_text), hint) == row.default


@each_row
def test_rows_read_well(row: Row) -> None:
    """Names are in snake_case, help is a sentence without its full stop, values have a metavar."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", row.name)
    assert row.option.help[0].isupper()
    assert not row.option.help.endswith(".")
    assert bool(row.metavar) is not (row.value.alone == "true" and row.name != "pass_local_rank")


def test_every_subject_has_options_and_a_heading() -> None:
    """Help and reference keep their order."""
    assert all(title_of(subject) and rows_of(subject) for subject in SUBJECTS)
