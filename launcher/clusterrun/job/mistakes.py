"""Errors about mistyped command lines: unknown options, and a SCRIPT that cannot be run.

The module is imported only to raise an error.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile, pairwise
from pathlib import Path

from clusterrun.errors import UsageError, printable, shell_line
from clusterrun.job.clusters.detection import CLUSTERS, TASK_LAUNCHERS
from clusterrun.job.file_kinds import FileKind, is_executable, kind_of, names_in
from clusterrun.job.foreign_options import common_option, foreign_option
from clusterrun.job.options import OPTIONS
from clusterrun.job.program import (
    COMPATIBLE_LAUNCHERS,
    DATA_FILES,
    DESCRIPTOR_FOLDERS,
    find_executable,
    is_interpreter,
    launcher_index,
    why_not_python,
)
from clusterrun.job.removed_options import REMOVED_OPTIONS
from clusterrun.job.sources import Layer
from clusterrun.job.suggestions import MAX_NAMES_IN_FOLDER, closest, did_you_mean_file

NAME_AND_VALUE = {"mca", "pmixmca", "prtemca", "genv"}
"""mpirun's options that are followed by two words, a name and a value."""

DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""Characters that word processors and web pages put in place of - and --."""

COMMANDS_OF_OTHERS = ("exec", "launch", "run", "start", "train")
"""Commands that start a job with other launchers."""

COMMANDS_AS_OPTIONS = {"help": "--help", "version": "--version"}
"""Commands of other programs that are options of clusterrun."""

USE_ENV = ("--use-env", "--use_env")

BLANK_AFTER_BACKSLASH = "if it should continue the line, remove the space after the \\"


def unknown_option(
    words: Sequence[str], known: Sequence[str], meant: Sequence[str], *, takes_script: bool
) -> UsageError:
    """Return the error for an unknown option; its hint also names later unknown options.

    Args:
        words: the command line from the option on.
        known: the known flags, without dashes.
        meant: the known flags that the option abbreviates.
        takes_script: SCRIPT may be among the words.

    """
    first = _unknown_option(words, known, meant, takes_script=takes_script)
    others = _other_unknown_options(words, known) if takes_script else ()
    return UsageError(first.message, "\n".join(filter(None, (first.hint, *others))))


def _other_unknown_options(words: Sequence[str], known: Sequence[str]) -> Iterator[str]:
    """Yield a line for each unknown long option between the first of ``words`` and SCRIPT."""
    shown = {words[0].partition("=")[0]}
    for before, word in pairwise(words):
        typed = word.partition("=")[0]
        name = typed.removeprefix("--").replace("_", "-")
        if not word.startswith("-"):
            is_value = before.startswith("-") and "=" not in before and not word.endswith(".py")
            if not is_value:
                return
        elif word in {"--", "-m", "--module", "--no-python"}:
            return
        elif typed.startswith("--") and typed not in shown:
            shown.add(typed)
            if not any(each.startswith(name) for each in known):
                missing = f"there is no option {printable(typed)} either"
                yield ": ".join((missing, *_instead_of(name, known)))


def _instead_of(name: str, known: Sequence[str]) -> tuple[str, ...]:
    if instead := REMOVED_OPTIONS.get(name.replace("-", "_")):
        return (instead,)
    foreign = tuple(dict.fromkeys((foreign_option(name) or {}).values()))
    return foreign or tuple(filter(None, (common_option(name, known),)))


def _unknown_option(
    words: Sequence[str], known: Sequence[str], meant: Sequence[str], *, takes_script: bool
) -> UsageError:
    typed = words[0].partition("=")[0]
    if instead := REMOVED_OPTIONS.get(typed.removeprefix("--").replace("-", "_")):
        return UsageError(f"there is no option {typed} any more", instead)
    with_one_dash = typed.removeprefix("-").replace("_", "-")
    if with_one_dash in known and not foreign_option(with_one_dash):
        return UsageError(f"there is no option {typed}", f"did you mean --{with_one_dash}?")
    # A short option of a command, such as -f, is probably not another launcher's.
    if (takes_script or typed.startswith("--")) and (foreign := _foreign_option_error(words)):
        return foreign
    for spelled in _spellings(typed) if takes_script else ():
        if instead := common_option(spelled.lstrip("-").replace("_", "-"), known):
            return UsageError(f"there is no option {spelled}", f"{instead}\n{_goes_after(words)}")
    if meant:
        flags = " or ".join(f"--{each}" for each in meant)
        return UsageError(f"{typed} could mean {flags}", "give one of them in full")
    nearest = closest(typed.lstrip("-").replace("_", "-"), known)
    hints = [f"did you mean --{nearest}?"] if nearest else []
    if takes_script and (_program_in(words) or not nearest):
        hints.append(_goes_after(words))
    return UsageError(f"there is no option {typed}", "\n".join(hints))


def missing_program(options: Layer) -> UsageError:
    """Return the error for a command line without SCRIPT, with these ``options``."""
    for name, texts in options.items():
        row, text = OPTIONS.get(name), texts[-1]
        # The script was taken for the value of an option: --ranks train.py.
        if row and row.metavar and row.value.completes != "file" and text.value.endswith(".py"):
            line = command(text.origin, row.metavar, text.value)
            value = f"{printable(text.value)} is the value of {text.origin}"
            return UsageError(
                "no script given",
                f"{value}; if it is the script, put a value before it:\n  {line}",
            )
    return UsageError("no script given", f"for example:\n  {command('train.py')}")


def wrong_script(words: Sequence[str], where: str, search_path: str) -> UsageError:
    """Return the error for a script, the first of ``words``, that cannot be run.

    The message begins with ``where``.
    """
    name, *args = words
    if name.startswith(DESCRIPTOR_FOLDERS):
        return UsageError(
            f"{where}{name} is open in this process alone, and workers can't read it",
            "save the script to a file, and give the file",
        )
    index = launcher_index(words)
    if index is not None:
        return _pasted_line(words, index, where)
    if is_interpreter(name):
        script = list(dropwhile(lambda word: word.startswith("-") and word != "-m", args))
        return UsageError(
            f"{where}{name} is an interpreter, not a script",
            "remove it; --python sets the workers' interpreter:\n"
            f"  {command(*(script or ('SCRIPT',)))}\n"
            "or run it as a program:\n"
            f"  {command('--no-python', *words)}",
        )
    kind = kind_of(name)
    if kind is FileKind.NOTHING:
        return _missing_script(words, where, search_path)
    if not os.access(name, os.R_OK, effective_ids=True):
        return UsageError(
            f"{where}{name} can't be read", f"check its mode:\n  ls -ld {shell_line([name])}"
        )
    if kind is FileKind.FOLDER and kind_of(f"{name}/__init__.py") is FileKind.FILE:
        return package_without_m(words, where)
    if kind is FileKind.FOLDER:
        nearest = _script_of_folder(name)
        within = printable(f"{name.rstrip('/')}/{nearest}")
        return UsageError(
            f"{where}{name} is a folder without __main__.py",
            f"did you mean {within}?" if nearest else "give a script in it",
        )
    reason = why_not_python(name)
    return UsageError(f"{where}{name} is not a Python script: {reason}", _how_to_use(words))


def package_without_m(words: Sequence[str], where: str) -> UsageError:
    """Return the error for a package, the first of ``words``, that is used as a script."""
    name, *args = words
    # Modules are found relative to the current folder, so the hint may need a cd.
    path, here = Path(name).resolve(), Path.cwd()
    package = [path.name]
    while path.parent != here and kind_of(f"{path.parent}/__init__.py") is FileKind.FILE:
        path = path.parent
        package.insert(0, path.name)
    folder = path.parent if name.startswith("/") else os.path.relpath(path.parent)
    cd = "" if path.parent == here else f"{shell_line(['cd', str(folder)])}\n  "
    if kind_of(f"{name}/__main__.py") is FileKind.FILE:
        script = command(f"{name.rstrip('/')}/__main__.py", *args)
        return UsageError(
            f"{where}{name} is a package, not a script",
            f"run it as a module:\n  {cd}{command('-m', '.'.join(package), *args)}\n"
            f"or its __main__.py as a script:\n  {script}",
        )
    module = _script_of_folder(name) or "MODULE.py"
    package.append(module.removesuffix(".py"))
    return UsageError(
        f"{where}{name} is a package without __main__.py",
        f"run one of its modules:\n  {cd}{command('-m', '.'.join(package), *args)}",
    )


def _script_of_folder(name: str) -> str:
    return closest("train.py", names_in(name, MAX_NAMES_IN_FOLDER, ending=".py"))


def wrong_module(name: str, where: str) -> UsageError:
    """Return the error for an impossible name of a module; its message begins with ``where``."""
    if not name:
        hint = f"for example:\n  {command('-m', 'package.module')}"
        return UsageError(f"{where}the name of the module is empty", hint)
    dotted = name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
    return UsageError(
        f"{where}{name} is a path, not the name of a module",
        f"for the module:\n  {command('-m', dotted)}\nfor the script:\n  {command(name)}",
    )


def wrong_executable(name: str, where: str) -> UsageError:
    """Return the error for a program that cannot be executed; its message begins with ``where``."""
    message = f"{where}{_why_not_executable(name)}"
    if kind_of(name) is not FileKind.FILE:
        hint = did_you_mean_file(name) or "give the path of a program"
    elif name.endswith(".py"):
        hint = f"for a Python script, remove --no-python:\n  {command(name)}"
    else:
        hint = f"run it by its path:\n  {command('--no-python', _path(name))}"
        if not is_executable(name):
            hint = f"{_make_executable(name)}\n{hint}"
    return UsageError(message, hint)


def wrong_hook(name: str, where: str) -> UsageError:
    """Return the error for a hook that cannot be executed; its message begins with ``where``."""
    message = f"{where}{_why_not_executable(name)}"
    if kind_of(name) is not FileKind.FILE:
        return UsageError(message, did_you_mean_file(name) or "give the path of a program")
    by_path = f"give its path, {printable(_path(name))}"
    return UsageError(message, by_path if is_executable(name) else _make_executable(name))


def wrong_interpreter(name: str, where: str) -> UsageError:
    """Return the error for an interpreter that cannot be executed; its message begins with ``where``."""
    message = f"{where}{_why_not_executable(name)}"
    inside = f"{name}/bin/python"
    if is_executable(inside):
        return UsageError(message, f"give its interpreter: {printable(inside)}")
    nearest = did_you_mean_file(name) if kind_of(name) is FileKind.NOTHING else ""
    return UsageError(message, nearest or "give the path of a Python, such as /usr/bin/python3")


def command(*words: str, before: Sequence[str] = ()) -> str:
    """Return the line ``clusterrun [OPTIONS] WORDS``, quoted for a shell."""
    return f"{shell_line([*before, 'clusterrun'])} [OPTIONS] {shell_line(words)}"


def _foreign_option_error(words: Sequence[str]) -> UsageError | None:
    """Return the error for an option of other launchers, the first of ``words``; None if none has it."""
    typed = words[0].partition("=")[0]
    for spelled in _spellings(typed):
        if found := foreign_option(spelled.lstrip("-").replace("_", "-")):
            have = "have" if len(found) > 1 else "has"
            message = f"there is no option {spelled}; {' and '.join(found)} {have} one"
            return UsageError(message, "\n".join(_hints(spelled, found, words)))
    return None


def _spellings(typed: str) -> tuple[str, ...]:
    """Return an option as typed and, if it may be a letter with a value, the letter: -N2, but not -lr."""
    is_name = typed.startswith("--") or re.fullmatch(r"[A-Za-z_-]*", typed[2:])
    return (typed,) if is_name else (typed, typed[:2])


def _hints(typed: str, foreign: Mapping[str, str], words: Sequence[str]) -> Iterator[str]:
    if len(set(foreign.values())) == 1:
        yield next(iter(foreign.values()))
    else:
        yield from (f"{launcher}'s {typed}: {instead}" for launcher, instead in foreign.items())
    script = next((word for word in words[1:] if word.endswith(".py")), "")
    if task_launchers := [launcher for launcher in foreign if launcher in TASK_LAUNCHERS]:
        # The next word is the option's value unless the value is attached or the word is a flag or script.
        has_value = words[0] == typed and not "".join(words[1:2]).startswith(("-", script or "-"))
        values = 2 if typed.lstrip("-") in NAME_AND_VALUE else 1
        line = command(
            script or "train.py", before=(task_launchers[-1], *words[: 1 + has_value * values])
        )
        yield f"an option of {' or '.join(task_launchers)} goes before clusterrun:\n  {line}"
    if script and _mentions(script, typed):
        yield _goes_after(words)


def _mentions(script: str, typed: str) -> bool:
    """Return whether the text of ``script`` contains the option ``typed``, with - or _."""
    with suppress(OSError):
        text = Path(script).read_text(encoding="utf-8", errors="replace")
        return typed.replace("_", "-") in text.replace("_", "-")
    return False


def _program_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return the first ``-m NAME`` or Python file after the option that begins ``words``."""
    for at, word in enumerate(words[1:], start=1):
        if word in {"-m", "--module"} and words[at + 1 :]:
            return ("-m", words[at + 1])
        if word.endswith(".py"):
            return (word,)
    return ()


def _goes_after(words: Sequence[str]) -> str:
    """Return the hint that the first of ``words`` may be an option of the script."""
    program = _program_in(words)
    name = printable(program[-1]) if program else "the script"
    # If no word is clearly the script, the next word may be the script, not a value.
    has_value = program and "=" not in words[0] and not words[1].startswith("-")
    value = words[1:2] if has_value and words[1] != program[-1] else ()
    line = command(*(program or ("train.py",)), words[0], *value)
    return f"if it is an option of {name}, put it after {name}:\n  {line}"


def _pasted_line(words: Sequence[str], index: int, where: str) -> UsageError:
    """Return the error for a command line of another launcher, which is the word at ``index``."""
    launcher, rest = words[index], words[index + 1 :]
    name = launcher.rpartition("/")[2]
    if index or name in COMPATIBLE_LAUNCHERS:
        # torch.distributed.launch passes the local rank as an argument by default.
        if launcher == "torch.distributed.launch" and not any(word in USE_ENV for word in rest):
            rest = ["--pass-local-rank", *rest]
        return UsageError(
            f"{where}{launcher} is a launcher, not a script",
            f"remove it; clusterrun takes the same options:\n  {command(*rest)}",
        )
    at = next((n for n, word in enumerate(words) if _begins_program(word)), len(words))
    program = [word for word in words[at:] if word not in {"python", "python3"}] or ["train.py"]
    if name in TASK_LAUNCHERS:
        return UsageError(
            f"{where}{launcher} must come before clusterrun",
            f"run:\n  {command(*program, before=words[:at])}",
        )
    return UsageError(
        f"{where}{launcher} is a launcher, not a script",
        f"remove it and its options:\n  {command(*program)}",
    )


def _begins_program(word: str) -> bool:
    return word.endswith(".py") or word in {"-m", "python", "python3"}


def _missing_script(words: Sequence[str], where: str, search_path: str) -> UsageError:
    name = words[0]
    if not name:
        return UsageError(
            f"{where}the name of the script is empty", "set the shell variable that it comes from"
        )
    if not name.strip():
        return UsageError(f"{where}the name of the script is a space", BLANK_AFTER_BACKSLASH)
    if name[0] in DASHES:
        option = name.lstrip(f"-{DASHES}").translate(dict.fromkeys(map(ord, DASHES), "-"))
        return UsageError(
            f"{where}{name} begins with {name[0]} (U+{ord(name[0]):04X}) instead of -",
            f"use {'-' if len(option) == 1 else '--'}{printable(option)}",
        )
    if name.startswith("~"):
        return UsageError(
            f"{where}{name} begins with ~, which only a shell expands", "give the path in full"
        )
    hints = "\n".join(_guesses(words, search_path))
    return UsageError(f"{where}{name} does not exist", hints)


def _guesses(words: Sequence[str], search_path: str) -> Iterator[str]:
    """Yield hints on what may be meant by a missing script, the first of ``words``."""
    name, *rest = words
    if name in COMMANDS_AS_OPTIONS:
        line = " ".join(["clusterrun", COMMANDS_AS_OPTIONS[name], *rest])
        yield f"for clusterrun's own {name}:\n  {line}"
    if nearest := did_you_mean_file(name):
        yield nearest
    if name in COMMANDS_OF_OTHERS:
        yield f"remove {name}:\n  {command(*(rest or ('train.py',)))}"
    if find_executable(name, search_path):
        yield f"to run the program {printable(name)}:\n  {command('--no-python', *words)}"
    if _is_module(name):
        yield f"to run the module {printable(name)}:\n  {command('-m', *words)}"


def _is_module(name: str) -> bool:
    """Return whether the module is in the current folder or in our site-packages."""
    folders = (".", *(each for each in sys.path if each.endswith("-packages")))
    files = [f"{name.replace('.', '/')}{ending}" for ending in (".py", "/__main__.py")]
    return any(kind_of(f"{each}/{file}") is FileKind.FILE for each in folders for file in files)


def _how_to_use(words: Sequence[str]) -> str:
    """Return the hint for a file, the first of ``words``, that is not a Python script."""
    name, *args = words
    stem, dot, letters = name.rpartition(".")
    ending = dot and dot + letters
    if ending == ".ipynb":
        line = command(f"{stem}.py", *args)
        return (
            f"convert it to a script:\n  jupyter nbconvert --to script {shell_line([name])}\n "
            f" {line}"
        )
    if ending in {".yaml", ".yml"} and not args:
        return f"if it is a job file:\n  {command('--config', name)}"
    if submit := _submit_command(name):
        return f"submit it as it is:\n  {submit.replace('FILE', shell_line([name]))}"
    if ending in DATA_FILES:
        return f"if it is an argument of the script:\n  {command('train.py', *words)}"
    line = command("--no-python", _path(name), *args)
    if not is_executable(name) and ending in {".sh", ".bash"}:
        line = command("--no-python", "bash", *words)
    elif not is_executable(name):
        line = f"{shell_line(['chmod', '+x', name])}\n  {line}"
    return f"run it as a program:\n  {line}"


def _submit_command(name: str) -> str:
    """Return the command that submits the file ``name``; "" if it is not a batch script."""
    # Directives are at the beginning of a batch script.
    with Path(name).open(encoding="utf-8", errors="replace") as file:
        lines = file.read(65_536).splitlines()
    batches = [each.scheduler.batch for each in CLUSTERS if each.job_variables]
    found = (
        submit
        for line in lines
        for prefix, submit in filter(None, batches)
        if line.startswith(prefix)
    )
    return next(found, "")


def _why_not_executable(name: str) -> str:
    if not name:
        return "the name of the program is empty"
    if "/" not in name:
        return f"program {name} not found on PATH"
    match kind_of(name):
        case FileKind.NOTHING:
            return f"{name} does not exist"
        case FileKind.FOLDER:
            return f"{name} is a folder"
        case _:
            return f"{name} is not executable"


def _make_executable(name: str) -> str:
    return f"make it executable:\n  {shell_line(['chmod', '+x', name])}"


def _path(name: str) -> str:
    """Return ``name`` with a /, so a shell does not search for it on PATH."""
    return name if "/" in name else f"./{name}"
