"""Checks that SCRIPT is a Python script, and hints what to type if it is not."""

import os
from collections.abc import Iterator, Sequence
from itertools import dropwhile
from pathlib import Path

from clusterrun.errors import UsageError
from clusterrun.job.file_kinds import FileKind, is_executable, kind_of
from clusterrun.job.suggestions import command, did_you_mean_file
from clusterrun.sources.other_launchers.pasted_lines import check_no_launcher
from clusterrun.sources.programs.executables import find_executable

INTERPRETERS = {"python", "pypy"}
"""Names of interpreters without their versions: ``python3.11``."""

DATA = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON", ".toml": "TOML", ".ipynb": "a notebook"}
"""Files of data; Python runs some of them without an error, and nothing happens."""

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""Hyphens and dashes by which word processors and web pages replace - and --."""

OTHERS_COMMANDS = ("exec", "launch", "run", "start", "train")
"""Words that start a job with other launchers."""

BLANK_AFTER_BACKSLASH = "if it should continue the line, remove the blank after the \\"

COMMANDS_AS_OPTIONS = {"help": "--help", "version": "--version"}
"""Commands of other programs that are options of clusterrun."""


def check_script(words: Sequence[str], where: str, search_path: str) -> None:
    """Check that ``words`` begin with a Python script, or a folder or archive that runs as one.

    The error's message begins with ``where``.
    """
    name = words[0]
    check_no_launcher(words, where)
    if name.rpartition("/")[2].rstrip("0123456789.") in INTERPRETERS:
        raise UsageError(
            f"{where}{name} is an interpreter, not a script", _hint_without_interpreter(words)
        )
    kind = kind_of(name)
    if kind is FileKind.NOTHING:
        raise _missing_script(words, where, search_path)
    if not os.access(name, os.R_OK, effective_ids=True):
        raise UsageError(f"{where}{name} cannot be read", f"check its mode:\n  ls -ld {name}")
    if kind is FileKind.FOLDER:
        _check_main(name, where)
    elif name.endswith(tuple(DATA)):
        raise _is_data(words, where)
    elif reason := _foreign(name):
        raise UsageError(f"{where}{name} is not a Python script: {reason}", _as_program(words))


def _hint_without_interpreter(words: Sequence[str]) -> str:
    script = list(dropwhile(lambda word: word.startswith("-") and word != "-m", words[1:]))
    return (
        f"leave it out; --python sets the workers' interpreter:\n"
        f"  {command(*(script or ('SCRIPT',)))}\n"
        f"or run it as a program:\n  {command('--no-python', *words)}"
    )


def _missing_script(words: Sequence[str], where: str, search_path: str) -> UsageError:
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


def _check_main(folder: str, where: str) -> None:
    if kind_of(f"{folder}/__main__.py") is not FileKind.FILE:
        raise UsageError(
            f"{where}{folder} is a folder without __main__.py",
            did_you_mean_file(f"{folder.rstrip('/')}/train.py") or "give a script in it",
        )


def _is_data(words: Sequence[str], where: str) -> UsageError:
    name, *args = words
    stem, dot, ending = name.rpartition(".")
    message = f"{where}{name} is not a Python script: it is {DATA[dot + ending]}"
    if ending == "ipynb":
        line = command(f"{stem}.py", *args)
        return UsageError(
            message, f"convert it to a script:\n  jupyter nbconvert --to script {name}\n  {line}"
        )
    if DATA[dot + ending] == "YAML" and not args:
        return UsageError(message, f"if it is a job file:\n  {command('--config', name)}")
    line = command("train.py", name, *args)
    return UsageError(message, f"if it is an argument of the script:\n  {line}")


def _foreign(name: str) -> str:
    """Return why the file cannot be Python; "" if it can be, or is a pipe, which is read only once."""
    if name.endswith(".py") or kind_of(name) is not FileKind.FILE:
        return ""
    with Path(name).open("rb") as file:
        first = file.readline(200).rstrip().decode(errors="replace")
    if first.startswith("\x7fELF"):
        return "it is a compiled program"
    if first.startswith("#!") and "python" not in first:
        return f"it begins with {first}"
    return "it is a shell script" if name.endswith((".sh", ".bash")) else ""


def _as_program(words: Sequence[str]) -> str:
    name, *args = words
    path = name if "/" in name else f"./{name}"
    if is_executable(name):
        return f"run it as a program:\n  {command('--no-python', path, *args)}"
    if name.endswith((".sh", ".bash")):
        return f"run it as a program:\n  {command('--no-python', 'bash', *words)}"
    return f"run it as a program:\n  chmod +x {name}\n  {command('--no-python', path, *args)}"
