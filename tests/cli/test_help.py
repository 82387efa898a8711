"""--help: the everyday options, each group, and every option in its group."""

import re
import sys

import pytest
from clusterrun.cli.commands import COMMANDS_BY_WORD, Command
from clusterrun.cli.help import COMMON_OPTIONS, GROUPS, OLD_GROUPS, TOPICS, help_text
from clusterrun.cli.main import version_text
from clusterrun.errors import UsageError
from clusterrun.job.declarations import title_of
from clusterrun.job.options import OPTIONS


def test_all_groups_stand_in_their_order() -> None:
    """Each heading once, as the table has them."""
    headings = [f"{title_of(subject)} (--help {group}):" for group, subject in GROUPS.items()]

    lines = help_text("all").splitlines()

    assert [line for line in lines if line in headings] == headings


@pytest.mark.parametrize("topic", [*TOPICS])
def test_help_fits_80_columns(topic: str) -> None:
    """Click wraps it. Texts have no placeholders left."""
    lines = help_text(topic).splitlines()

    assert max(map(len, lines)) <= 80
    assert not any(re.search(r"\{_?[A-Z]", line) for line in lines)


def test_the_overview_names_the_groups() -> None:
    """An option that it does not show is in one of them."""
    text = help_text()

    assert all(OPTIONS[name].flag in text for name, _ in COMMON_OPTIONS)
    assert all(group in text for group in GROUPS)
    assert all(f" {word}" in " ".join(text.split()) for word in COMMANDS_BY_WORD)
    described = " ".join(help_text("commands").split())
    assert all(command.summary in described for command in COMMANDS_BY_WORD.values())


@pytest.mark.parametrize("command", COMMANDS_BY_WORD.values(), ids=COMMANDS_BY_WORD)
def test_help_on_a_command_has_each_of_its_options(command: Command) -> None:
    """Those of its own, and those of a job that matter to it."""
    text = help_text(command.word)

    rows = [*command.own_rows.values(), *(OPTIONS[name] for name in command.shown)]
    assert all(row.flag in text for row in rows)
    assert ("Its own options" in text) == bool(rows)


@pytest.mark.parametrize(("old", "new"), OLD_GROUPS.items())
def test_old_group_names(old: str, new: str) -> None:
    """Scripts and notes have those of 0.1."""
    assert help_text(old) == help_text(new)


@pytest.mark.parametrize("word", ["train.py", "/home/me/x.py"])
def test_the_script_is_not_a_topic(word: str) -> None:
    """Asked for help before SCRIPT, the overview is meant."""
    assert help_text(word) == help_text()


@pytest.mark.parametrize("topic", TOPICS)
def test_a_mistyped_topic_is_corrected(topic: str) -> None:
    """With one letter missing, the nearest topic is suggested."""
    with pytest.raises(UsageError) as caught:
        help_text(topic[:-1])

    assert caught.value.hint.startswith("did you mean --help ")


def test_version_has_all_that_a_bug_report_needs() -> None:
    """Ours stands in pyproject.toml alone; Python's and torch's are those of this environment."""
    clusterrun, python, torch = version_text().split(", ")

    assert clusterrun.startswith("clusterrun 0.")
    assert python == f"Python {sys.version.split()[0]}"
    assert torch == "no torch" or torch.startswith("torch 2.")
