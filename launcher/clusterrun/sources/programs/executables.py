"""Programs that the job names: found as the shell finds them, along the job's own PATH."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import command, did_you_mean_file
from clusterrun.sources.programs.file_kinds import FileKind, is_executable, kind_of


def find_executable(name: str, search_path: str) -> str:
    """Return the path of the program ``name``, looked up in ``search_path`` unless it has a /.

    Returns "" where there is no such file, or nobody may execute it.
    """
    if "/" in name:
        return name if is_executable(name) else ""
    folders = search_path.split(os.pathsep) if name else []
    paths = (f"{folder or '.'}/{name}" for folder in folders)
    return next((path for path in paths if is_executable(path)), "")


def find_interpreter(python: Fact[str], search_path: str) -> Fact[str]:
    """Return the path of the interpreter ``python``, which may be a name on ``search_path``.

    Raises:
        UsageError: there is no such program, or it cannot be executed.

    """
    found = find_executable(python.value, search_path)
    if found:
        return Fact(found, python.origin)
    raise UsageError(
        f"{python.origin}: {_why_not_executable(python.value)}", _interpreter_hint(python.value)
    )


def another_environment(python: Fact[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if workers run on clusterrun's ``python`` and not on the active one's."""
    active = variables.get("VIRTUAL_ENV", "")
    its_python = f"{active}/bin/python"
    if not active or python.origin != "default" or not is_executable(its_python):
        return
    # bin/python is a link: the folder tells environments apart, not what it leads to.
    if Path(python.value).parent.parent.resolve() != Path(active).resolve():
        yield (
            f"workers run on {python.value}, where clusterrun is installed; the active environment"
            f" (VIRTUAL_ENV) is {active}: --python {its_python} uses it"
        )


def expect_program(name: str, where: str, search_path: str) -> None:
    """Return if ``name`` is a program for ``--no-python``; ``where`` stands before a complaint.

    Raises:
        UsageError: there is no such program, or it cannot be executed.

    """
    if not find_executable(name, search_path):
        raise UsageError(f"{where}{_why_not_executable(name)}", _program_hint(name))


def _why_not_executable(name: str) -> str:
    if not name:
        return "the program's name is empty"
    if "/" not in name:
        return f"there is no program {name} on PATH"
    match kind_of(name):
        case FileKind.NOTHING:
            return f"{name} does not exist"
        case FileKind.FOLDER:
            return f"{name} is a folder"
        case _:
            return f"{name} is not executable"


def _interpreter_hint(name: str) -> str:
    inside = f"{name}/bin/python"
    if is_executable(inside):
        return f"the interpreter in that environment is {inside}"
    nearest = did_you_mean_file(name) if kind_of(name) is FileKind.NOTHING else ""
    return nearest or "give the path of a Python, such as /usr/bin/python3"


def _program_hint(name: str) -> str:
    if kind_of(name) is not FileKind.FILE:
        return did_you_mean_file(name) or "give the path of a program"
    if name.endswith(".py"):
        return f"for a Python script leave out --no-python:\n  {command(name)}"
    path = name if "/" in name else f"./{name}"
    hint = f"run it by its path:\n  {command('--no-python', path)}"
    return hint if is_executable(name) else f"make it executable:\n  chmod +x {name}\n{hint}"
