"""The command line, read by click with a command that is built from the table of options.

click only splits the words: values stay raw text, so that every conversion and every complaint is
the table's, wherever a value was said.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import click

from clusterrun.cli.mistakes import expect_values, misused_flag, unknown_flag
from clusterrun.cli.spelling import TORCHRUN_FLAGS, full_name
from clusterrun.sources.command_line import CommandLine
from clusterrun.sources.options.option import Kind, Option, flag
from clusterrun.sources.options.table import OPTIONS

ALONE = "true"
"""What a flag says whose value is left out."""

OPTIONAL = {
    name.replace("_", "-")
    for option in OPTIONS
    if option.kind is Kind.OPTIONAL
    for name in option.names
}


LIKE_HELP = {"-host", "-hosts", "-hostfile"}
"""Options of mpirun that click takes for -h with a topic behind it."""

SHORT_WITH_VALUES = {
    f"-{option.short}" for option in OPTIONS if option.short and option.kind is Kind.VALUE
}


class Answer(NamedTuple):
    """What --help and --version ask for: a text for standard output, and an end with code 0."""

    text: str


def instruction_variable(called: str) -> str:
    """Return the variable by which a shell asks for completions, as click names it."""
    return f"_{called.upper()}_COMPLETE"


def parse(argv: Sequence[str], called: str = "clusterrun") -> CommandLine | Answer:
    """Split ``argv``, without the program's own name, into flags and the words from SCRIPT on.

    As ``torchrun``, abbreviations are torchrun's before they are ours.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has one that it does not take.

    """
    full = partial(full_name, preferred=TORCHRUN_FLAGS if called == "torchrun" else ())
    try:
        context = _command(full).make_context("clusterrun", _with_values(argv, full))
    except click.NoSuchOption as error:
        raise unknown_flag(error.option_name, argv) from None
    except click.BadOptionUsage as error:
        raise misused_flag(error.option_name) from None
    # What was not given is None, False or (), as its kind has it; an empty text was given.
    given = {name: value for name, value in context.params.items() if value or value == ""}
    if f"-h{given.get('help')}" in {*argv} & LIKE_HELP:
        raise unknown_flag("-h", argv)
    if answer := _answer(given, called):
        return answer
    # As they were typed: see _with_values.
    words = tuple(argv[len(argv) - len(given.pop("words", ())) :])
    expect_values(given, () if words else argv)
    return CommandLine(given, words)


def names_topo(line: CommandLine) -> bool:
    """Return whether it names the command ``topo``, and not a module or program of that name."""
    return (
        line.words[:1] == ("topo",) and not {"module", "no_python", "run_path"} & line.flags.keys()
    )


def _answer(given: Mapping[str, str], called: str) -> Answer | None:
    """Return what is asked for in place of a job; None where a job is."""
    # Nothing of this is on the way to the workers.
    if "help" in given:
        from clusterrun.cli.help import help_text

        return Answer(help_text(given["help"]))
    if "version" in given:
        from clusterrun.cli.help import version_text

        return Answer(version_text())
    if "print_completion" in given:
        from clusterrun.cli.completion import completion_script

        return Answer(completion_script(given["print_completion"], called))
    return None


def _with_values(argv: Sequence[str], full: Callable[[str], str]) -> list[str]:
    """Return as many words, those that may have a value behind ``=`` with one.

    Without it click would take the next word for the value, and that is the script. Of ``-t=3`` it
    would take the ``=`` for a part of the value, which argparse does not.
    """
    return [f"{word}={ALONE}" if _is_alone(word, full) else _without_equals(word) for word in argv]


def _without_equals(word: str) -> str:
    return word[:2] + word[3:] if word[2:3] == "=" and word[:2] in SHORT_WITH_VALUES else word


def _is_alone(word: str, full: Callable[[str], str]) -> bool:
    return word.startswith("--") and "=" not in word and full(word[2:]) in OPTIONAL


def _command(full: Callable[[str], str]) -> click.Command:
    flags = [_flag(option, name) for option in OPTIONS for name in option.names]
    answers = [
        # The topic may be left out.
        click.Option(["-h", "--help", "help"], is_flag=False, flag_value="overview"),
        click.Option(["--version", "version"], is_flag=True),
        click.Option(["--print-completion", "print_completion"], type=click.UNPROCESSED),
    ]
    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        "clusterrun",
        params=[*flags, *answers, words],
        add_help_option=False,
        # All that follows SCRIPT belongs to the script.
        context_settings={"token_normalize_func": full, "allow_interspersed_args": False},
    )


def _flag(option: Option[object], name: str) -> click.Option:
    spellings = [flag(name), name]
    if option.short and name == option.name:
        spellings.append(f"-{option.short}")
    if option.kind is Kind.FLAG:
        return click.Option(spellings, is_flag=True)
    return click.Option(spellings, type=click.UNPROCESSED, multiple=option.kind is Kind.REPEATED)
