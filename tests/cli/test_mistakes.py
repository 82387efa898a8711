"""Command lines that cannot be split: exit code 2, what is wrong, what to type."""

import pytest

from tests.cli.door import (
    UsageError,
    split,
)
from tests.command_lines import flags_of


@pytest.mark.parametrize("argv", [["--nproc-per-node", " "], ["-v", "--log-dir", " "]])
def test_a_blank_behind_a_backslash(argv: list[str]) -> None:
    """A shell takes it for the value, and ends the line there."""
    with pytest.raises(UsageError) as caught:
        split(argv)

    assert caught.value.message == f"{argv[-2]} needs a value, and has a blank"
    assert caught.value.hint.startswith("if it should continue the line, remove the blank after")


def test_a_blank_that_is_meant() -> None:
    """Before the script it is a value as any other."""
    line = split(["--log-line-prefix-template", " ", "train.py"])

    assert flags_of(line.options) == {"log_line_prefix_template": " "}
