"""One row of the table: its names, its default in text, and complaints that say where."""

from enum import Enum

import pytest

from tests.sources.door import (
    Fact,
    Option,
    UsageError,
    flag,
    restart_count,
    spell,
)


class Colour(Enum):
    """A choice for a test."""

    RED = "red"


RETRIES = Option(
    "retry_count",
    parse=restart_count,
    default=3,
    metavar="N",
    help="How often",
    aliases=("tries",),
)


def test_names_begin_with_its_own() -> None:
    """Aliases follow; the flag is spelled with dashes."""
    names, spelled = RETRIES.names, RETRIES.flag

    assert (names, spelled) == (("retry_count", "tries"), "--retry-count")


def test_a_value_keeps_its_origin() -> None:
    """What is read says where it was said."""
    value = RETRIES.read(Fact("7", "job.yaml:2 retry_count"))

    assert value == Fact(7, "job.yaml:2 retry_count")


def test_a_complaint_begins_with_the_origin() -> None:
    """The parser's sentence and hint arrive with the place in front."""
    with pytest.raises(UsageError) as caught:
        RETRIES.read(Fact("x", "CLUSTERRUN_RETRY_COUNT"))

    assert caught.value.message == "CLUSTERRUN_RETRY_COUNT: 'x' is not a number of restarts"
    assert caught.value.hint == "give a number from 0"


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
