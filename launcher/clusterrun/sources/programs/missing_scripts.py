"""Errors for a SCRIPT that does not exist, with guesses at what was meant."""

from collections.abc import Iterator, Sequence

from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import command, did_you_mean_file
from clusterrun.sources.programs.executables import find_executable
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""Hyphens and dashes by which word processors and web pages replace - and --."""

OTHERS_COMMANDS = ("exec", "launch", "run", "start", "train")
"""Words that start a job with other launchers."""

COMMANDS_AS_OPTIONS = {"help": "--help", "version": "--version"}
"""Commands of other programs that are options of clusterrun."""

BLANK_AFTER_BACKSLASH = "if it should continue the line, remove the blank after the \\"


def missing_script(words: Sequence[str], where: str, search_path: str) -> UsageError:
    """Return the error for ``words`` whose first is not a file; its message begins with ``where``."""
    name = words[0]
    if not name:
        return UsageError(f"{where}the name of the script is empty", "is a shell variable not set?")
    if not name.strip():
        return UsageError(
            f"{where}the name of the script is a blank",
            BLANK_AFTER_BACKSLASH,
        )
    if name[0] in DASHES:
        return _not_a_dash(name, where)
    if name.startswith("~"):
        return UsageError(
            f"{where}{name} begins with ~, which only a shell expands", "write the path in full"
        )
    hints = "\n".join(_guesses(words, search_path))
    return UsageError(f"{where}{name} does not exist", hints)


def _not_a_dash(name: str, where: str) -> UsageError:
    bare = name.lstrip(f"-{DASHES}")
    option = bare.translate(dict.fromkeys(map(ord, DASHES), "-"))
    dashes = "-" if len(option) == 1 else "--"
    return UsageError(
        f"{where}{name} begins with {name[0]} (U+{ord(name[0]):04X}) instead of -",
        f"type {dashes}{option}",
    )


def _guesses(words: Sequence[str], search_path: str) -> Iterator[str]:
    name, *rest = words
    if nearest := did_you_mean_file(name):
        yield nearest
    if name in COMMANDS_AS_OPTIONS:
        line = " ".join(["clusterrun", COMMANDS_AS_OPTIONS[name], *rest])
        yield f"for clusterrun's own {name}:\n  {line}"
    if name in OTHERS_COMMANDS:
        line = command(*(rest or ("train.py",)))
        yield f"leave {name} out:\n  {line}"
    if find_executable(name, search_path):
        yield f"to run the program {name}:\n  {command('--no-python', *words)}"
    if kind_of(f"{name.replace('.', '/')}.py") is FileKind.FILE:
        yield f"to run the module {name}:\n  {command('-m', *words)}"
