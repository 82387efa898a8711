"""The command line, split into options and the words from SCRIPT on.

Values stay text, so that they are read, and mistakes are reported, in the same way wherever they were
set. A flag may be typed with - or _, in full, or abbreviated until only one fits.

No library does this: each node pays for what is imported here whenever a job starts. click, which has
help and the shells' scripts, would be a sixth of the time from here to a job.
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
"""All flags of torchrun 2.15 (torch/distributed/run.py), in which its abbreviations are looked up."""

MPIRUN_HOSTS = {"-host", "-hosts", "-hostfile"}
"""Options of mpirun, not -h with a topic."""

OVERVIEW = "overview"
"""What --help shows without a topic."""


class Printing(Struct, frozen=True):
    """Options that print something and end, whatever else is on the line: the first of several."""

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
    instead: Callable[[Sequence[str], Sequence[str]], UsageError | None] | None = None,
) -> CommandLine:
    """Split ``argv``, without the program's own name.

    As ``torchrun``, abbreviations are torchrun's before they are ours.

    Args:
        argv: the words.
        called: the program's name.
        rows: the options that may be typed, besides those that print something and end.
        takes_script: SCRIPT may be among the words, and all after it is the script's; without,
            options may be typed anywhere.
        instead: returns the error for an option that others have and this command has not, from the
            words that begin with it and the flags that are known; None for any other.

    Raises:
        UsageError: a flag is unknown, lacks its value, or has one that it does not take.

    """
    rows = {**rows, **PRINTING}
    known = flags_of(rows)
    preferred = TORCHRUN_FLAGS if called == "torchrun" else ()
    shorts = {row.option.short: row.name for row in rows.values() if row.option.short}
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
            is_in_full = word[2:].partition("=")[0].replace("_", "-") in known
        else:
            options = _short_options(word, rows, shorts)
            is_in_full = bool(options)
        # Before abbreviations: sbatch's --signal is not --signals-to-handle.
        if instead and not is_in_full and (error := instead([word, *rest], known)):
            raise error
        if not options:
            raise _unknown(word, rest, known, takes_script=takes_script)
        for name, touching in options:
            row, typed = rows[name], flag(name)
            shown = typed if word.startswith("--") else f"-{row.option.short}"
            text = Setting(_text(shown, touching, row, rest, known), typed)
            # Of an option that is typed twice the last value counts.
            before = found.get(row.name, ())
            kept = before if row.value.repeated else (it for it in before if it.origin != typed)
            found[row.name] = (*kept, text)
    return CommandLine(found, tuple(words), after_dashes)


Options = list[tuple[str, str | None]]
"""Those of one word, each with the text that touches it, None for none; [] if one is unknown."""


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
        # -resume is no -r with a value: none of these values begins with a letter.
        if touches and letters[:1].isalpha():
            return []
        found.append((name, letters.removeprefix("=") if touches and letters else None))
        letters = "" if touches else letters
    return found


def _text(
    shown: str, touching: str | None, row: Row, rest: deque[str], known: Sequence[str]
) -> str:
    """Return the text of an option: what touches it, or the next of the words, which is taken."""
    if not row.metavar:
        if touching is not None:
            raise UsageError(f"{shown} takes no value", f"type {shown} alone")
        return row.value.implied
    if touching is not None:
        return touching
    hint = f"type {shown} {row.metavar}"
    if row.value.implied:
        is_value = rest and not row.needs_equals and (rest[0] == "-" or rest[0][:1] != "-")
        return rest.popleft() if is_value else row.value.implied
    if not rest:
        raise UsageError(f"{shown} needs a value", hint)
    text = rest.popleft()
    if is_flag(text, known):
        raise UsageError(f"{shown} needs a value, and {text} is an option", hint)
    # A shell makes a word of the blank in "\ " and ends the line there.
    if text.isspace() and not rest:
        from clusterrun.job.mistakes import BLANK_AFTER_BACKSLASH

        raise UsageError(f"{shown} needs a value, and has a blank", BLANK_AFTER_BACKSLASH)
    return text


def flags_of(rows: Rows) -> tuple[str, ...]:
    """Return the flags of options, without dashes."""
    return tuple(name.replace("_", "-") for name in rows)


FLAGS = flags_of({**NAMES, **PRINTING})


def expand_flag(name: str, preferred: Sequence[str] = (), known: Sequence[str] = FLAGS) -> str:
    """Return the flag that ``name`` means, both without dashes; ``name`` with - if none or several.

    An abbreviation of one ``preferred`` flag means that flag. The exact name of another launcher's
    option is not an abbreviation.
    """
    spelled = name.replace("_", "-")
    if spelled in known:
        return spelled
    meant = meanings(spelled, known)
    among = [each for each in meant if each in preferred]
    if len(among) == 1:
        return among[0]
    return meant[0] if len(meant) == 1 and not _is_foreign(spelled) else spelled


def meanings(name: str, known: Sequence[str] = FLAGS) -> tuple[str, ...]:
    """Return the flags that ``name`` is or abbreviates, all without dashes."""
    # One letter is a short flag: -m must not become the one long flag that begins with m.
    if name in known or len(name) < 2:
        return (name,) if name in known else ()
    return tuple(each for each in known if each.startswith(name))


def is_flag(word: str, known: Sequence[str] = FLAGS) -> bool:
    """Return whether ``word`` is a long flag, perhaps with ``=VALUE``; one that ``known`` adds, in full.

    A command's own are not abbreviated here: the value of ``--directive`` may be ``--mem=4G``.
    """
    name = word.removeprefix("--").partition("=")[0].replace("_", "-")
    return word.startswith("--") and (name in known or bool(meanings(name)))


def _is_foreign(name: str) -> bool:
    """Return whether ``name``, no option of ours, is in full one of other launchers.

    An abbreviation that torchrun takes means here what it means there.
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
    meant = meanings(typed[2:], known) if typed.startswith("--") else ()
    return unknown_option([word, *rest], known, meant, takes_script=takes_script)
