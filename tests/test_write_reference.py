"""The pages and files that follow from options, commands and types of messages are up to date."""

import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
from clusterrun.bounds import Count, Line, Name, Port, RunId, Seconds, Text
from msgspec import Meta, Struct
from msgspec.inspect import type_info
from write_reference import (
    in_words,
    message_tables,
    protocol_page,
    references,
    types_table,
    yaml_reference,
)


class Colour(Enum):
    """What it looks like."""

    RED = "red"
    """As blood."""


class Part(Struct):
    """A part of ``Whole``."""

    colour: Colour


class Whole(Struct, tag=True):
    """All of it.

    Twice.
    """

    rank: Count
    """Where it is,
    in one line."""
    part: Part | None = None
    names: tuple[Name, ...] = ()


@pytest.mark.parametrize(
    ("path", "text"), references().items(), ids=[path.name for path in references()]
)
def test_the_file_follows_from_the_code(path: Path, text: str) -> None:
    """After a change of an option, command or message, type: python scripts/write_reference.py."""
    assert path.read_text() == text


def test_lines_of_yaml_are_short() -> None:
    """Comments are wrapped to the width of the code."""
    assert max(map(len, yaml_reference().splitlines())) <= 100


def test_a_type_is_shown_with_its_fields_and_their_docstrings() -> None:
    """In the order of the source; a type that is one of several says so."""
    assert types_table([Whole, Part, Colour]).splitlines()[2:] == [
        "| **`Whole`** | map with `type` | All of it. Twice. |  |",
        "| `rank` | whole number from 0 to 2147483647 | Where it is, in one line. |  |",
        "| `part` | `Part` or null |  | `null` |",
        "| `names` | list, each line of at most 255 characters |  | `[]` |",
        "| **`Part`** | map | A part of `Whole`. |  |",
        "| `colour` | `Colour` |  |  |",
        "| **`Colour`** | text | What it looks like. |  |",
        '| `"red"` |  | As blood. |  |',
    ]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Line, "line of at most 16384 characters"),
        (Annotated[Name, Meta(min_length=1)], "line of 1 to 255 characters"),
        (RunId, "line of at most 255 characters, no path"),
        (Text, "text of at most 65536 characters"),
        (Port, "whole number from 1 to 65535"),
        (Seconds, "number from 0 to 10000000000"),
        (bool | str | float, "true or false, text or number"),
        (tuple[int, str], "list: whole number, text"),
        (Annotated[tuple[Part, ...], Meta(max_length=2)], "list of at most 2, each `Part`"),
        (dict[str, Port], "map of text to whole number from 1 to 65535"),
    ],
)
def test_bounds_are_shown(kind: Any, words: str) -> None:
    """Both ends are included."""
    assert in_words(type_info(kind)) == words


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, Meta(gt=0)],
        Annotated[float, Meta(ge=0)],
        Annotated[bytes, Meta(min_length=3)],
    ],
)
def test_no_bound_is_left_out(kind: Any) -> None:
    """A message with another kind of bound needs words for it."""
    with pytest.raises(TypeError, match="no words"):
        in_words(type_info(kind))


def test_every_part_of_a_message_is_described() -> None:
    """Each type that a field names has its own rows."""
    tables = "".join(message_tables().values())

    described = re.findall(r"(?m)^\| \*\*`(\w+)`", tables)
    fields = re.findall(r"(?m)^\| `\w+` \| ([^|]+) \|", tables)
    named = {name for field in fields for name in re.findall(r"`(\w+)`", field)}
    assert named
    assert sorted(named - {*described}) == []


def test_a_table_without_a_place_is_an_error() -> None:
    """Otherwise it could be lost unnoticed."""
    with pytest.raises(ValueError, match="not enough values"):
        protocol_page("# Protocol\n")
