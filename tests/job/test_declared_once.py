"""Everything that follows from the declaration of an option is complete and right."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_type_hints

import msgspec
from clusterrun.cli.help import GROUPS, help_text
from clusterrun.cli.splitting import split
from clusterrun.job.declarations import Row, Setting, rows_of, title_of
from clusterrun.job.job_file import read_job_file
from clusterrun.job.options import OPTIONS, SUBJECTS
from clusterrun.job.sources import CommandLine, value_of

from tests.own_options import OPTIONS_OF_COMMANDS

REFERENCE = Path(__file__).parents[2] / "configs" / "reference.yaml"


def test_option_declarations_are_consistent() -> None:
    """Defaults, types, flags, help and configs/reference.yaml agree for each option."""
    rows = [*OPTIONS.values(), *OPTIONS_OF_COMMANDS.values()]
    reference = read_job_file(Setting(str(REFERENCE), "--config")).settings
    helps = {group: " ".join(help_text(group).split()) for group in GROUPS}

    problems = [f"{row.name}: {each}" for row in rows for each in declaration_errors(row)]
    problems += [
        f"{row.name}: --help {group} does not show {part!r}"
        for group, subject in GROUPS.items()
        for row in rows_of(subject).values()
        for part in shown(row)
        if part not in helps[group]
    ]
    for name, row in OPTIONS.items():
        problems += [f"{name}: {typed} is not its flag" for typed in unread_flags(row)]
        if value_of(name, (reference,)).value != row.default:
            problems.append(f"{name}: configs/reference.yaml has another default")

    assert problems == []


def declaration_errors(row: Row) -> Iterator[str]:
    """Yield what is wrong with a declaration; mypy does not compare the reader of a text with the field."""
    text, option = row.default_text, row.option
    if not (row.value.read(text) == row.default if text else option.default):
        yield "its default can neither be typed nor is described in words"
    if not option.default and not row.value.repeated:
        hint = get_type_hints(row.subject, include_extras=False)[row.name]
        if msgspec.convert(row.value.read(text), hint) != row.default:
            yield "a value that is read has not the type of the field"
    if not re.fullmatch(r"[a-z]+(_[a-z]+)*", row.name):
        yield "its name is not in snake_case"
    if not option.help[0].isupper() or option.help.endswith("."):
        yield "its help is not a sentence without its full stop"
    if bool(row.metavar) is (row.value.implied == "true" and row.name != "pass_local_rank"):
        yield "it has a metavar or a value, not both"


def shown(row: Row) -> Sequence[str]:
    """Return what help must contain: the flag, its sentence, and the default unless it is "false"."""
    default = row.option.default or row.default_text
    defaults = [] if default == "false" else [f"[default: {default}]"]
    return [row.flag, row.option.help, *defaults]


def unread_flags(row: Row) -> Iterator[str]:
    """Yield the flags that are not read as this option, with the typed flag as origin."""
    for name in row.names:
        typed = f"--{name.replace('_', '-')}"
        value = ["x"] if row.metavar and not row.needs_equals else []
        text = value[0] if value else "true"
        expected = CommandLine({row.name: (Setting(text, typed),)}, ("train.py",))
        if split([typed, *value, "train.py"]) != expected:
            yield typed


def test_option_names_are_unique() -> None:
    letters = [row.option.short for row in OPTIONS.values() if row.option.short]
    names = [name for row in OPTIONS.values() for name in row.names]

    assert max(Counter([*names, *letters]).values()) == 1


def test_subjects_have_options_and_a_title() -> None:
    assert all(title_of(subject) and rows_of(subject) for subject in SUBJECTS)
