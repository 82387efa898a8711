"""The pages and files that follow from the tables of options and commands are up to date."""

from pathlib import Path

import pytest
from write_reference import references, yaml_reference


@pytest.mark.parametrize(
    ("path", "text"), references().items(), ids=[path.name for path in references()]
)
def test_the_file_follows_from_the_tables(path: Path, text: str) -> None:
    """After a change of a table, type: python scripts/write_reference.py."""
    assert path.read_text() == text


def test_lines_of_yaml_are_short() -> None:
    """Comments are wrapped to the width of the code."""
    assert max(map(len, yaml_reference().splitlines())) <= 100
