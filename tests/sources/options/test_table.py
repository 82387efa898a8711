"""The table of options holds together."""

import re
from collections import Counter

import pytest

from tests.sources.door import (
    BY_GROUP,
    OPTIONS,
    Group,
    JobSpec,
    Kind,
    Option,
)

ids = [option.name for option in OPTIONS]


def test_every_field_of_a_job_is_an_option() -> None:
    """All but the program's words, our name, the token, and what a cluster or a terminal tells."""
    names = {option.name for option in OPTIONS}
    by_cluster = {"fewest_nodes", "tasks", "port_candidates", "numa_node", "unclear"}
    by_scheduler = {"scheduler", "ends_at", "resumed"}
    others = {
        "program",
        "as_torchrun",
        "token",
        "coloured",
        "kept_attempts",
        "is_merged",
        "workerlog",
    }

    assert set(JobSpec.__annotations__) - names == others | by_cluster | by_scheduler


def test_names_are_unique() -> None:
    """No name, alias or letter means two options."""
    letters = [option.short for option in OPTIONS if option.short]
    names = [name for option in OPTIONS for name in option.names]

    assert max(Counter([*names, *letters]).values()) == 1


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
def test_defaults_can_be_typed(option: Option[object]) -> None:
    """A default that is shown as text is what the text says, and any other is told in words."""
    text = option.default_text

    assert option.default_words if not text else option.parse(text) == option.default


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
def test_rows_read_well(option: Option[object]) -> None:
    """Names are in snake_case, help is a sentence without its full stop, values have a metavar."""
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", option.name)
    assert option.help[0].isupper()
    assert not option.help.endswith(".")
    assert bool(option.metavar) is (option.kind is not Kind.FLAG)


def test_every_group_has_rows() -> None:
    """In the order of the headings, so that help and reference keep the table's order."""
    assert list(BY_GROUP) == list(Group)
    assert all(BY_GROUP.values())
