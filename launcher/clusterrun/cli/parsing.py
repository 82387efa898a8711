"""The command line, split by click.

click only splits: values stay text, so that the table reads them and reports mistakes in the same
way wherever they were set.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from clusterrun.cli.commands.table import FLAG_OPTIONS, HELP
from clusterrun.cli.mistakes import expect_values, flag_value_error, unknown_flag
from clusterrun.cli.spelling import TORCHRUN_FLAGS, flag_names, full_name
from clusterrun.job.declaring import flag
from clusterrun.sources.options.option import Kind, Option
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import CommandLine

Values = Callable[[click.Context, click.Parameter, str], list[Any]]
"""Returns the completions of a value that is begun."""

YES = "true"
"""The value of an option of ``Kind.OPTIONAL`` that is typed without one."""

MPIRUN_HOSTS = {"-host", "-hosts", "-hostfile"}
"""Options of mpirun that click reads as -h with a topic."""

SHORT_WITH_VALUES = {
    f"-{option.short}" for option in OPTIONS if option.short and option.kind is Kind.VALUE
}


def completion_variable(called: str) -> str:
    """Return the variable by which a shell asks for completions, as click names it."""
    return f"_{called.upper()}_COMPLETE"


def parse(
    argv: Sequence[str],
    called: str = "clusterrun",
    options: Sequence[Option[object]] = OPTIONS,
    *,
    takes_script: bool = True,
) -> CommandLine:
    """Split ``argv``, without the program's own name, into flags and the words from SCRIPT on.

    As ``torchrun``, abbreviations are torchrun's before they are ours.

    Args:
        argv: the words.
        called: the program's name.
        options: those that may be typed.
        takes_script: SCRIPT may be among the words, and all after it is the script's; without,
            options may be typed anywhere.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has one that it does not take.

    """
    preferred = TORCHRUN_FLAGS if called == "torchrun" else ()
    full = partial(full_name, preferred=preferred, known=flag_names(options))
    command = click_command(_typed(options, argv, full), full, takes_script=takes_script)
    try:
        context = command.make_context("clusterrun", with_values(argv, options, full))
    except click.NoSuchOption as error:
        raise unknown_flag(error.option_name, argv, options, takes_script=takes_script) from None
    except click.BadOptionUsage as error:
        raise flag_value_error(error.option_name, options) from None
    # click's value for a flag that was not given is None, False or (); "" is given.
    flags = {name: value for name, value in context.params.items() if value or value == ""}
    if f"-h{flags.get(HELP.name)}" in {*argv} & MPIRUN_HOSTS:
        raise unknown_flag("-h", argv, options, takes_script=takes_script)
    words = flags.pop("words", ())
    if takes_script:
        # From argv: those of click have the values that with_values adds.
        words = tuple(argv[len(argv) - len(words) :])
    if not any(option.name in flags for option in FLAG_OPTIONS):
        expect_values(flags, () if words else argv, options)
    return CommandLine(flags, words)


def click_command(
    options: Sequence[Option[object]],
    full: Callable[[str], str],
    values_of: Callable[[Option[object] | None], Values | None] = lambda _option: None,
    command_class: type[click.Command] = click.Command,
    *,
    takes_script: bool = True,
) -> click.Command:
    """Return the command that splits a line with these options, and those that name a command.

    ``full`` returns a flag in full, both without dashes; ``values_of`` what completes an option's
    value, or SCRIPT and its arguments (None).
    """
    rows = (*options, *FLAG_OPTIONS)
    flags = [_click_option(row, name, values_of(row)) for row in rows for name in row.names]
    words = click.Argument(
        ["words"], nargs=-1, type=click.UNPROCESSED, shell_complete=values_of(None)
    )
    return command_class(
        "clusterrun",
        params=[*flags, words],
        add_help_option=False,
        # All that follows SCRIPT belongs to the script.
        context_settings={
            "token_normalize_func": full,
            "allow_interspersed_args": not takes_script,
        },
    )


def _click_option(option: Option[object], name: str, values: Values | None) -> click.Option:
    typed = [flag(name), name]
    if option.short and name == option.name:
        typed.append(f"-{option.short}")
    if option.kind is Kind.FLAG:
        return click.Option(typed, is_flag=True, help=option.help)
    if option.kind is Kind.NEXT_WORD:
        return click.Option(
            typed, is_flag=False, flag_value="", help=option.help, shell_complete=values
        )
    return click.Option(
        typed,
        type=click.UNPROCESSED,
        multiple=option.kind is Kind.REPEATED,
        help=option.help,
        shell_complete=values,
    )


def _typed(
    options: Sequence[Option[object]], argv: Sequence[str], full: Callable[[str], str]
) -> list[Option[object]]:
    """Return the options that ``argv`` may contain: click takes 1 ms to go through all."""
    names = {f"--{full(word[2:].partition('=')[0])}" for word in argv if word.startswith("--")}
    return [option for option in options if option.short or names & {flag(n) for n in option.names}]


def with_values(
    argv: Sequence[str], options: Sequence[Option[object]], full: Callable[[str], str]
) -> list[str]:
    """Return as many words, with a value for each flag that may be typed without one.

    click would take the next word for the value, and that is the script. It would also take the =
    of ``-t=3`` for a part of the value, as argparse does not.
    """
    optional = {
        flag(name) for option in options if option.kind is Kind.OPTIONAL for name in option.names
    }

    def lacks_value(word: str) -> bool:
        return word.startswith("--") and "=" not in word and f"--{full(word[2:])}" in optional

    return [f"{word}={YES}" if lacks_value(word) else _without_equals(word) for word in argv]


def _without_equals(word: str) -> str:
    return word[:2] + word[3:] if word[2:3] == "=" and word[:2] in SHORT_WITH_VALUES else word
