"""Programs that the job names, found along the job's own PATH as a shell finds them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.file_kinds import FileKind, is_executable, kind_of
from clusterrun.job.suggestions import command, did_you_mean_file


def find_executable(name: str, search_path: str) -> str:
    """Return the path of the program ``name``, looked up in ``search_path`` unless it has a /.

    Returns "" if there is no such file, or this user may not execute it.
    """
    if "/" in name:
        return name if is_executable(name) else ""
    folders = search_path.split(os.pathsep) if name else []
    paths = (f"{folder or '.'}/{name}" for folder in folders)
    return next((path for path in paths if is_executable(path)), "")


def find_interpreter(python: Fact[str], search_path: str) -> Fact[str]:
    """Return the path of the interpreter ``python``, which may be a name on ``search_path``."""
    found = find_executable(python.value, search_path)
    if found:
        return Fact(found, python.origin)
    raise UsageError(
        f"{python.origin}: {_why_not_executable(python.value)}", _interpreter_hint(python.value)
    )


def another_environment(python: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if clusterrun's own ``python`` is not that of the active environment."""
    active = variables.get("VIRTUAL_ENV", "")
    its_python = f"{active}/bin/python"
    if not active or not is_executable(its_python):
        return
    # bin/python is a link: environments differ by its folder, not by its target.
    if Path(python).parent.parent.resolve() != Path(active).resolve():
        yield (
            f"workers run {python}, as clusterrun does, not the active environment {active}"
            f" (VIRTUAL_ENV); to use that, type --python {its_python}"
        )


def check_program(name: str, where: str, search_path: str) -> None:
    """Check that ``name`` is a program; the error's message begins with ``where``."""
    if not find_executable(name, search_path):
        raise UsageError(f"{where}{_why_not_executable(name)}", _program_hint(name))


def check_hook(hook: Fact[tuple[str, ...]], search_path: str) -> None:
    """Check that the first word of ``hook``, a command or nothing, is a program."""
    if not hook.value or find_executable(hook.value[0], search_path):
        return
    name = hook.value[0]
    hint = did_you_mean_file(name) or "give the path of a program"
    if kind_of(name) is FileKind.FILE:
        path = name if "/" in name else f"./{name}"
        hint = (
            f"give its path, {path}"
            if is_executable(name)
            else f"make it executable:\n  chmod +x {name}"
        )
    raise UsageError(f"{hook.origin}: {_why_not_executable(name)}", hint)


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


def _interpreter_hint(name: str) -> str:
    inside = f"{name}/bin/python"
    if is_executable(inside):
        return f"give its interpreter: {inside}"
    nearest = did_you_mean_file(name) if kind_of(name) is FileKind.NOTHING else ""
    return nearest or "give the path of a Python, such as /usr/bin/python3"


def _program_hint(name: str) -> str:
    if kind_of(name) is not FileKind.FILE:
        return did_you_mean_file(name) or "give the path of a program"
    if name.endswith(".py"):
        return f"for a Python script, leave out --no-python:\n  {command(name)}"
    path = name if "/" in name else f"./{name}"
    hint = f"run it by its path:\n  {command('--no-python', path)}"
    return hint if is_executable(name) else f"make it executable:\n  chmod +x {name}\n{hint}"
