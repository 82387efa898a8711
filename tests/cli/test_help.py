"""--help tells of every option, in the groups of the table."""

import pytest

from launcher.cli.help import help_text, version_text
from launcher.sources.option import Group, Option
from launcher.sources.options import OPTIONS


@pytest.mark.parametrize("option", OPTIONS, ids=[option.name for option in OPTIONS])
def test_every_option_is_told(option: Option[object]) -> None:
    """With its flag, its help, and its default where it has one to speak of."""
    told = " ".join(help_text().split())
    default = option.otherwise or option.default_text

    assert option.flag in told
    assert option.help in told
    assert default == "false" or f"[default: {default}]" in told


def test_groups_stand_in_their_order() -> None:
    """Each heading once, as the table has them."""
    lines = help_text().splitlines()

    assert [line for line in lines if line.removesuffix(":") in {g.value for g in Group}] == [
        f"{group.value}:" for group in Group
    ]


def test_lines_fit_a_narrow_terminal() -> None:
    """Click wraps to the terminal's width, 80 at most."""
    assert max(map(len, help_text().splitlines())) <= 80


def test_version_is_the_packages() -> None:
    """The number stands in pyproject.toml alone."""
    name, number = version_text().split()

    assert name == "clusterrun"
    assert number[0].isdigit()
