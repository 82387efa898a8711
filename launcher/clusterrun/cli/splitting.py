"""Splits the command line into options and the words from SCRIPT on.

Values stay text, so they are parsed, and errors are reported, in the same way wherever a value was set.
A flag may be written with - or _, in full, or abbreviated if only one flag matches.

No library is used, because its import would delay the start of every job: click, which is used for help
and completion, would take a sixth of the time from here to the job.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declarations import Option, Row, Setting, Value, by_any_name, flag, rows_of
from clusterrun.job.options import NAMES
from clusterrun.job.sources import CommandLine

Rows = Mapping[str, Row]
"""Options by each of their names."""

TORCHRUN_FLAGS = (
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf"),
    *("standalone", "max-restarts", "monitor-interval", "start-method", "event-log-handler"),
    *("role", "module", "no-python", "run-path", "log-dir", "redirects", "tee"),
    *("log-line-prefix-template", "local-ranks-filter", "duplicate-stdout-filters"),
    *("duplicate-stderr-filters", "node-rank", "master-addr", "master-port", "local-addr"),
    *("logs-specs", "numa-binding", "signals-to-handle", "shutdown-timeout"),
    *("virtual-local-rank", "print-completion", "help"),
)
"""All flags of torchrun 2.15 (torch/distributed/run.py), for resolving its abbreviations."""

MPIRUN_HOSTS = {"-host", "-hosts", "-hostfile"}
"""Options of mpirun, which are not -h with a topic."""

OVERVIEW = "overview"
"""The topic of --help without a value."""


class Printing(Struct, frozen=True):
    """Options that print something and exit, whatever else is on the line; the first of several counts."""

    help: Annotated[
        str,
        Value(str, "[GROUP|all]", implied=OVERVIEW),
        Option("Print this, a group of options, or all", short="h"),
    ] = ""
    version: Annotated[bool, Option("Print the versions of clusterrun, Python and torch")] = False
    print_completion: Annotated[
        str,
        Value(str, "SHELL"),
        Option("Print the completion script for bash, zsh or fish"),
    ] = ""


PRINTING = by_any_name(rows_of(Printing))


def split(
    argv: Sequence[str],
    called: str = "clusterrun",
    rows: Rows = NAMES,
    *,
    takes_script: bool = True,
    explain: Callable[[Sequence[str], Sequence[str]], UsageError | None] | None = None,
) -> CommandLine:
    """Split a command line.

    Args:
        argv: the words, without the program's name.
        called: the program's name. For "torchrun", abbreviations of torchrun's flags come first.
        rows: the valid options, besides those of ``PRINTING``.
        takes_script: whether the first word is SCRIPT and all after it belongs to the script. If not,
            options may be anywhere.
        explain: takes the words from an unknown option on and the known flags; returns a specific error,
            or None.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has a value that it does not take.

    """
    rows = {**rows, **PRINTING}
    known = flags_of(rows)
    preferred = TORCHRUN_FLAGS if called == "torchrun" else ()
    shorts = {row.option.short: row.name for row in rows.values() if row.option.short}

    def is_option(word: str) -> bool:
        return is_flag(word, known) or (word[:1] == "-" and word[1:] in shorts)

    found: dict[str, tuple[Setting[str], ...]] = {}
    words: list[str] = []
    after_dashes = False
    rest = deque(argv)
    while rest:
        word = rest.popleft()
        if word == "--":
            after_dashes = not words
            words += rest
            break
        if word == "-" or not word.startswith("-"):
            words.append(word)
            if takes_script:
                words += rest
                break
            continue
        if word.startswith("--"):
            options = _long_option(word, rows, preferred, known)
            is_exact = word[2:].partition("=")[0].replace("_", "-") in known
        else:
            options = _short_options(word, rows, shorts)
            is_exact = bool(options)
        # Takes precedence over abbreviations: sbatch's --signal is not --signals-to-handle.
        if explain and not is_exact and (error := explain([word, *rest], known)):
            raise error
        if not options:
            raise _unknown(word, rest, known, takes_script=takes_script)
        for name, touching in options:
            row, typed = rows[name], flag(name)
            shown = typed if word.startswith("--") else f"-{row.option.short}"
            text = Setting(_text(shown, touching, row, rest, is_option), typed)
            # The last value of a repeated option counts, unless it takes several.
            before = found.get(row.name, ())
            kept = before if row.value.repeated else (it for it in before if it.origin != typed)
            found[row.name] = (*kept, text)
    return CommandLine(found, tuple(words), after_dashes)


Options = list[tuple[str, str | None]]
"""The options of one word, each with the value attached to it, or None; [] if one is unknown."""


def _long_option(word: str, rows: Rows, preferred: Sequence[str], known: Sequence[str]) -> Options:
    """Return the option of a word such as ``--tee=3``."""
    typed, equals, text = word[2:].partition("=")
    name = expand_flag(typed, preferred, known).replace("-", "_")
    return [(name, text if equals else None)] if name in rows else []


def _short_options(word: str, rows: Rows, shorts: Mapping[str, str]) -> Options:
    """Return the options of a word such as ``-t3``, ``-t=3`` or ``-vm``."""
    found: Options = []
    letters = word[1:] if word not in MPIRUN_HOSTS else "?"
    while letters:
        name, letters = shorts.get(letters[0], ""), letters[1:]
        if not name:
            return []
        touches = bool(rows[name].metavar) or letters.startswith("=")
        # No value of a short option begins with a letter, so -resume is not -r with a value.
        if touches and letters[:1].isalpha():
            return []
        found.append((name, letters.removeprefix("=") if touches and letters else None))
        letters = "" if touches else letters
    return found


def _text(
    shown: str,
    touching: str | None,
    row: Row,
    rest: deque[str],
    is_option: Callable[[str], bool],
) -> str:
    """Return the value of an option: the attached text, or the next word, which is removed from ``rest``."""
    if not row.metavar:
        if touching is not None:
            raise UsageError(f"{shown} takes no value", f"use {shown} without a value")
        return row.value.implied
    if touching is not None:
        return touching
    hint = f"use {shown} {row.metavar}"
    if row.value.implied:
        is_value = rest and not row.needs_equals and (rest[0] == "-" or rest[0][:1] != "-")
        return rest.popleft() if is_value else row.value.implied
    if not rest:
        raise UsageError(f"{shown} needs a value", hint)
    text = rest.popleft()
    if is_option(text):
        raise UsageError(
            f"{shown} needs a value, but {text} is an option",
            f"{hint}, or {shown}={text} if that is its value",
        )
    # A backslash and a space at the end of a line give such a word.
    if text.isspace() and not rest:
        from clusterrun.job.mistakes import BLANK_AFTER_BACKSLASH

        raise UsageError(f"{shown} needs a value, but got a space", BLANK_AFTER_BACKSLASH)
    return text


def flags_of(rows: Rows) -> tuple[str, ...]:
    """Return the flags of options, without dashes."""
    return tuple(name.replace("_", "-") for name in rows)


FLAGS = flags_of({**NAMES, **PRINTING})


def expand_flag(name: str, preferred: Sequence[str] = (), known: Sequence[str] = FLAGS) -> str:
    """Return the flag that ``name`` abbreviates, without dashes; ``name`` itself if there is not exactly one.

    If only one ``preferred`` flag matches, it is that one. The exact name of another launcher's option
    is not treated as an abbreviation.
    """
    spelled = name.replace("_", "-")
    if spelled in known:
        return spelled
    matches = matching_flags(spelled, known)
    among = [each for each in matches if each in preferred]
    if len(among) == 1:
        return among[0]
    return matches[0] if len(matches) == 1 and not _is_foreign(spelled) else spelled


def matching_flags(name: str, known: Sequence[str] = FLAGS) -> tuple[str, ...]:
    """Return the flags that ``name`` is or abbreviates, all without dashes."""
    # One letter is a short flag: -m does not abbreviate a long flag.
    if name in known or len(name) < 2:
        return (name,) if name in known else ()
    return tuple(each for each in known if each.startswith(name))


def is_flag(word: str, known: Sequence[str] = FLAGS) -> bool:
    """Return whether ``word`` is a long flag, perhaps abbreviated, perhaps with ``=VALUE``.

    A command's own flags in ``known`` must be in full: the value of ``--directive`` may be ``--mem=4G``.
    """
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    return word.startswith("--") and (name in known or bool(matching_flags(name)))


def _is_foreign(name: str) -> bool:
    """Return whether ``name`` is the exact name of another launcher's option.

    An abbreviation that torchrun accepts is not foreign: it means here what it means there.
    """
    if sum(each.startswith(name) for each in TORCHRUN_FLAGS) == 1:
        return False
    from clusterrun.job.foreign_options import common_option, foreign_option

    return foreign_option(name) is not None or common_option(name) != ""


def _unknown(
    word: str, rest: Sequence[str], known: Sequence[str], *, takes_script: bool
) -> UsageError:
    from clusterrun.job.mistakes import unknown_option

    typed = word.partition("=")[0].replace("_", "-")
    matches = matching_flags(typed[2:], known) if typed.startswith("--") else ()
    return unknown_option([word, *rest], known, matches, takes_script=takes_script)
