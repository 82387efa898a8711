"""The pages and files that follow from options, commands and types of messages are up to date."""

from pathlib import Path

import pytest
from msgspec import Struct
from write_reference import protocol_page, references, types_table, yaml_reference


class Whole(Struct, tag=True):
    """All of it: ``rank`` too.

    Twice.
    """

    rank: int
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("path", "text"), references().items(), ids=[path.name for path in references()]
)
def test_the_file_follows_from_the_code(path: Path, text: str) -> None:
    """After a change of an option, command or message, type: python scripts/write_reference.py."""
    assert path.read_text() == text


def test_lines_of_yaml_are_short() -> None:
    """Comments are wrapped to the width of the code."""
    assert max(map(len, yaml_reference().splitlines())) <= 100


def test_a_type_is_shown_with_its_docstring_and_its_fields() -> None:
    """In the order of the source."""
    assert types_table([Whole]).splitlines()[2:] == [
        "| `Whole` | All of it: `rank` too. Twice. | `rank`, `names` |"
    ]


def test_a_table_without_a_place_is_an_error() -> None:
    """Otherwise it could be lost unnoticed."""
    with pytest.raises(ValueError, match="not enough values"):
        protocol_page("# Protocol\n")
