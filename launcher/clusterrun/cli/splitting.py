"""The command line, split by click into options and the words from SCRIPT on.

click only splits: values stay text, so that they are read, and mistakes are reported, in the same way
wherever they were set. A flag may be typed with - or _, in full, or abbreviated until only one fits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from clusterrun.cli.printing_options import PRINTING
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Row, flag
from clusterrun.job.options import NAMES
from clusterrun.job.sources import CommandLine, Layer, collected

Rows = Mapping[str, Row]
"""Options by each of their names."""

Values = Callable[[click.Context, click.Parameter, str], list[Any]]
"""Returns the completions of a value that is begun."""

TORCHRUN_FLAGS = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("standalone", "max-restarts", "monitor-interval", "start-method", "event-log-handler"),
    *("role", "module", "no-python", "run-path", "log-dir", "redirects", "tee"),
    *("log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters"),
    *("duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr"),
    *("logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
    *("virtual-local-rank", "print-completion", "help"),
)
"""All flags of torchrun 2.15 (torch/distributed/run.py), in which its abbreviations are looked up."""

MPIRUN_HOSTS = {"-host", "-hosts", "-hostfile"}
"""Options of mpirun that click reads as -h with a topic."""


def split(
    argv: Sequence[str],
    called: str = "clusterrun",
    rows: Rows = NAMES,
    *,
    takes_script: bool = True,
) -> CommandLine:
    """Split ``argv``, without the program's own name.

    As ``torchrun``, abbreviations are torchrun's before they are ours.

    Args:
        argv: the words.
        called: the program's name.
        rows: the options that may be typed, besides those that print something and end.
        takes_script: SCRIPT may be among the words, and all after it is the script's; without,
            options may be typed anywhere.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has one that it does not take.

    """
    rows = {**rows, **PRINTING}
    preferred = TORCHRUN_FLAGS if called == "torchrun" else ()
    full = partial(full_name, preferred=preferred, known=flags_of(rows))
    command = click_command(_typed(rows, argv, full), full, takes_script=takes_script)
    try:
        context = command.make_context("clusterrun", with_values(argv, rows, full))
    except click.NoSuchOption as error:
        raise unknown_flag(error.option_name, argv, rows, takes_script=takes_script) from None
    except click.BadOptionUsage as error:
        raise flag_value_error(error.option_name, rows) from None
    words = context.params.pop("words") or ()
    if takes_script:
        # From argv: those of click have the values that with_values adds.
        words = tuple(argv[len(argv) - len(words) :])
    # In the order in which click has them: as they are typed.
    options = collected(
        (rows[name], Fact(text, flag(name)))
        for name, value in context.params.items()
        for text in _texts(value)
    )
    if any(f"-h{text.value}" in {*argv} & MPIRUN_HOSTS for text in options.get("help", ())):
        raise unknown_flag("-h", argv, rows, takes_script=takes_script)
    if options.keys().isdisjoint(PRINTING):
        expect_values(options, () if words else argv, rows)
    return CommandLine(options, words)


def click_command(
    rows: Rows,
    full: Callable[[str], str],
    values_of: Callable[[Row | None], Values | None] = lambda _row: None,
    command_class: type[click.Command] = click.Command,
    *,
    takes_script: bool = True,
) -> click.Command:
    """Return the command that splits a line with these options.

    ``full`` returns a flag in full, both without dashes; ``values_of`` what completes an option's
    value, or SCRIPT and its arguments (None).
    """
    flags = [_click_option(row, name, values_of(row)) for name, row in rows.items()]
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


def with_values(argv: Sequence[str], rows: Rows, full: Callable[[str], str]) -> list[str]:
    """Return as many words, with a value for each flag that may be typed without one.

    click would take the next word for the value, and that is the script. It would also take the =
    of ``-t=3`` for a part of the value, as argparse does not.
    """
    alone = {flag(name): row.value.alone for name, row in rows.items() if row.needs_equals}
    short = {f"-{row.option.short}" for row in rows.values() if row.option.short and row.metavar}

    def changed(word: str) -> str:
        if word.startswith("--") and "=" not in word:
            text = alone.get(f"--{full(word[2:])}")
            return f"{word}={text}" if text else word
        return word[:2] + word[3:] if word[2:3] == "=" and word[:2] in short else word

    return [changed(word) for word in argv]


def flags_of(rows: Rows) -> tuple[str, ...]:
    """Return the flags of options, without dashes."""
    return tuple(name.replace("_", "-") for name in rows)


FLAGS = flags_of({**NAMES, **PRINTING})


def full_name(name: str, preferred: Sequence[str] = (), known: Sequence[str] = FLAGS) -> str:
    """Return the flag that ``name`` means, both without dashes; ``name`` with - if none or several.

    An abbreviation of one ``preferred`` flag means that flag. The exact name of another launcher's
    option is no abbreviation.
    """
    spelled = name.replace("_", "-")
    meant = meanings(spelled, known)
    among = [each for each in meant if each in preferred]
    if len(among) == 1:
        return among[0]
    return meant[0] if len(meant) == 1 and not _is_foreign(spelled, known) else spelled


def meanings(name: str, known: Sequence[str] = FLAGS) -> tuple[str, ...]:
    """Return the flags that ``name`` is or abbreviates, all without dashes."""
    # One letter is a short flag: -m must not become the one long flag that begins with m.
    if name in known or len(name) < 2:
        return (name,) if name in known else ()
    return tuple(each for each in known if each.startswith(name))


def is_flag(word: str) -> bool:
    """Return whether ``word`` is a long flag of ours, perhaps with ``=VALUE``."""
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    return word.startswith("--") and bool(meanings(name))


def _click_option(row: Row, name: str, values: Values | None) -> click.Option:
    typed = [flag(name), name]
    if row.option.short and name == row.name:
        typed.append(f"-{row.option.short}")
    if not row.metavar:
        return click.Option(typed, is_flag=True, help=row.option.help)
    if row.value.alone and not row.needs_equals:
        return click.Option(
            typed,
            is_flag=False,
            flag_value=row.value.alone,
            help=row.option.help,
            shell_complete=values,
        )
    return click.Option(
        typed,
        type=click.UNPROCESSED,
        multiple=row.value.repeated,
        help=row.option.help,
        shell_complete=values,
    )


def _typed(rows: Rows, argv: Sequence[str], full: Callable[[str], str]) -> Rows:
    """Return the options that ``argv`` may contain: click takes 1 ms to go through all."""
    names = {full(word[2:].partition("=")[0]) for word in argv if word.startswith("--")}
    return {
        name: row
        for name, row in rows.items()
        if row.option.short or name.replace("_", "-") in names
    }


def _texts(value: object) -> tuple[str, ...]:
    """Return the texts of click's value: that of a flag that was not given is None, False or ()."""
    match value:
        case True:
            return ("true",)
        case str():
            return (value,)
        case tuple():
            return value
    return ()


def _is_foreign(name: str, known: Sequence[str]) -> bool:
    """Return whether ``name`` is in full an option of other launchers.

    An abbreviation that torchrun takes means here what it means there.
    """
    if name in known or sum(each.startswith(name) for each in TORCHRUN_FLAGS) == 1:
        return False
    from clusterrun.job.foreign_options import foreign_option

    return foreign_option(name) is not None


def unknown_flag(name: str, argv: Sequence[str], rows: Rows, *, takes_script: bool) -> UsageError:
    """Return the error for flag ``name`` of ``argv``, which click gives in its full spelling."""
    from clusterrun.job.mistakes import unknown_option

    def is_typed(word: str) -> bool:
        if name.startswith("--"):
            head = word.partition("=")[0]
            return head.startswith("--") and head.replace("_", "-") == name
        # Perhaps among others in one word, -vz, or with its value, -z2.
        return word.startswith("-") and not word.startswith("--") and name[1:] in word

    place = next((n for n, word in enumerate(argv) if is_typed(word)), 0)
    known = flags_of(rows)
    meant = meanings(name.removeprefix("--"), known)
    return unknown_option(argv[place:], known, meant, takes_script=takes_script)


def flag_value_error(name: str, rows: Rows) -> UsageError:
    """Return the error for flag ``name``, which lacks a value, or has one and takes none."""
    typed = (
        row for row in rows.values() if name in {f"-{row.option.short}", *map(flag, row.names)}
    )
    metavar = next((row.metavar for row in typed), "")
    if not metavar:
        return UsageError(f"{name} takes no value", f"type {name} alone")
    return UsageError(f"{name} needs a value", f"type {name} {metavar}")


def expect_values(options: Layer, argv: Sequence[str], rows: Rows) -> None:
    """Check that no option has taken the next flag, or a trailing blank of ``argv``, for its value.

    Raises:
        UsageError: one has, because its own value is missing.

    """
    # A shell makes a word of the blank in "\ " and ends the line there.
    last = {texts[-1].value for texts in options.values()}
    if len(argv) > 1 and argv[-1].isspace() and argv[-1] in last:
        from clusterrun.job.mistakes import BLANK_AFTER_BACKSLASH

        raise UsageError(f"{argv[-2]} needs a value, and has a blank", BLANK_AFTER_BACKSLASH)
    for name, texts in options.items():
        for text in texts:
            if is_flag(text.value):
                raise UsageError(
                    f"{text.origin} needs a value, and {text.value} is an option",
                    f"type {text.origin} {rows[name].metavar}",
                )
