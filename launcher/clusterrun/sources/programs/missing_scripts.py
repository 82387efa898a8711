"""What to say of a SCRIPT that does not exist: what it was probably meant to be."""

from collections.abc import Iterator, Sequence

from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import command, did_you_mean_file
from clusterrun.sources.programs.executables import find_executable
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""Hyphens, the en dash and others, which word processors and web pages make of - and --."""

NO_COMMANDS = ("exec", "launch", "run", "start", "train")
"""Words that start a job elsewhere."""

ANSWERS = {"help": "--help", "version": "--version"}
"""Words that ask other programs for something, and the options that ask us."""


BLANK_AFTER_BACKSLASH = (
    "a \\ that continues a line must be its last character: remove the blank after it"
)


def missing_script(words: Sequence[str], where: str, search_path: str) -> UsageError:
    """Return the error for ``words`` that begin with no file; ``where`` stands before it."""
    name = words[0]
    if not name:
        return UsageError(
            f"{where}the name of the script is empty", "is a variable of the shell not set?"
        )
    if not name.strip():
        return UsageError(
            f"{where}the name of the script is a blank",
            BLANK_AFTER_BACKSLASH,
        )
    if name[0] in DASHES:
        return _not_a_dash(name, where)
    if name.startswith("~"):
        return UsageError(
            f"{where}{name} has a ~, and nothing but a shell expands it", "write the path in full"
        )
    hints = "\n".join(_guesses(words, search_path))
    return UsageError(f"{where}{name} does not exist", hints)


def _not_a_dash(name: str, where: str) -> UsageError:
    bare = name.lstrip(f"-{DASHES}")
    option = bare.translate(dict.fromkeys(map(ord, DASHES), "-"))
    dashes = "-" if len(option) == 1 else "--"
    return UsageError(
        f"{where}{name} begins with {name[0]} (U+{ord(name[0]):04X}), which is not the - of options",
        f"type {dashes}{option}",
    )


def _guesses(words: Sequence[str], search_path: str) -> Iterator[str]:
    name, *rest = words
    if nearest := did_you_mean_file(name):
        yield nearest
    if name in ANSWERS:
        yield f"to ask clusterrun itself:\n  clusterrun {' '.join([ANSWERS[name], *rest])}"
    if name in NO_COMMANDS:
        line = command(*(rest or ("train.py",)))
        yield f"clusterrun starts a job without such a word:\n  {line}"
    if find_executable(name, search_path):
        yield f"to run the program of that name:\n  {command('--no-python', *words)}"
    if kind_of(f"{name.replace('.', '/')}.py") is FileKind.FILE:
        yield f"to run the module of that name:\n  {command('-m', *words)}"
