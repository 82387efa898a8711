"""Finds and checks the workers' program: a script, a module or an executable.

The errors are in ``mistakes.py``, which is imported only to raise one.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import TASK_LAUNCHERS
from clusterrun.job.declarations import Row, Setting
from clusterrun.job.file_kinds import FileKind, is_executable, kind_of
from clusterrun.job.job import STANDARD_INPUT, ProgramKind, WorkerProgram
from clusterrun.job.options import NAMES
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.this_process import ThisProcess

COMMAND_LINE = "command line"
"""The origin of a typed program."""

INTERPRETERS = {"python", "pypy"}
"""Names of interpreters without versions."""

COMPATIBLE_LAUNCHERS = ("torchrun", "clusterrun")
"""Launchers whose options clusterrun also takes."""

TORCH_LAUNCHERS = ("torch.distributed.launch", "torch.distributed.run")
"""Modules with torchrun's options, run by ``python -m``."""

OTHER_LAUNCHERS = ("accelerate", "deepspeed", "horovodrun", "fabric", "lightning", "composer")

DESCRIPTOR_FOLDERS = ("/dev/fd/", "/proc/self/fd/")
"""Where a shell's ``<(...)`` is; workers do not inherit these descriptors, except standard input."""

DATA_FILES = {
    ".yaml": "YAML",
    ".yml": "YAML",
    ".json": "JSON",
    ".toml": "TOML",
    ".ipynb": "a notebook",
}
"""Data files by suffix. Python would run some of them without an error and do nothing."""


def find_program(
    words: Setting[tuple[str, ...]],
    sources: Sequence[Layer],
    search_path: str,
    *,
    runs_packages: bool = False,
) -> Setting[WorkerProgram]:
    """Return the workers' program; ``words`` are its name and its arguments.

    With ``runs_packages``, a package without ``-m`` runs its ``__main__.py`` as a script, as with
    torchrun.

    Raises:
        UsageError: there is no such program, or its options are incompatible.

    """
    _check_options(sources)
    if not words.value:
        from clusterrun.job.mistakes import missing_program

        raise missing_program(sources[0])
    where = "" if words.origin == COMMAND_LINE else f"{words.origin}: "
    name, *args = words.value
    # As with torchrun, --run-path is stronger than --no-python.
    if value_of("run_path", sources).value:
        kind = ProgramKind.RUN_PATH
        check_script(words.value, where, search_path)
    elif value_of("no_python", sources).value:
        kind = ProgramKind.EXECUTABLE
        if not find_executable(name, search_path):
            from clusterrun.job.mistakes import wrong_executable

            raise wrong_executable(name, where)
    elif value_of("module", sources).value:
        kind = ProgramKind.MODULE
        if not name or "/" in name or name.endswith(".py"):
            from clusterrun.job.mistakes import wrong_module

            raise wrong_module(name, where)
    else:
        kind = ProgramKind.SCRIPT
        if name != "-":
            check_script(words.value, where, search_path)
        if not runs_packages and kind_of(f"{name}/__init__.py") is FileKind.FILE:
            from clusterrun.job.mistakes import package_without_m

            raise package_without_m(words.value, where)
    return Setting(WorkerProgram(kind, name, tuple(args)), words.origin)


def check_script(words: Sequence[str], where: str, search_path: str) -> None:
    """Check that the first of ``words`` is a Python script, or a folder or archive that runs as one.

    Raises:
        UsageError: it is not; the message begins with ``where``.

    """
    name, kind = words[0], kind_of(words[0])
    if (
        (name.startswith(DESCRIPTOR_FOLDERS) and name not in STANDARD_INPUT)
        or launcher_index(words) is not None
        or is_interpreter(name)
        or kind is FileKind.NOTHING
        or not os.access(name, os.R_OK, effective_ids=True)
        or (kind is FileKind.FOLDER and kind_of(f"{name}/__main__.py") is not FileKind.FILE)
        or (kind is not FileKind.FOLDER and why_not_python(name))
    ):
        from clusterrun.job.mistakes import wrong_script

        raise wrong_script(words, where, search_path)


def launcher_index(words: Sequence[str]) -> int | None:
    """Return the index of a launcher if ``words`` begin with its command line, else None."""
    name = words[0].rpartition("/")[2]
    # A file in the current folder with the name of a launcher is a script.
    is_command = "/" in words[0] or kind_of(words[0]) is FileKind.NOTHING
    if name == "torchrun" or (name in COMPATIBLE_LAUNCHERS and is_command):
        return 0
    for index, word in enumerate(words[:4]):
        # The words before may be "python -u -m"; later words may be arguments of a script.
        if word in TORCH_LAUNCHERS and index and words[index - 1] == "-m":
            return index
    return 0 if name in {*OTHER_LAUNCHERS, *TASK_LAUNCHERS} and is_command else None


def is_interpreter(name: str) -> bool:
    return name.rpartition("/")[2].rstrip("0123456789.") in INTERPRETERS


def why_not_python(path: str) -> str:
    """Return why the file cannot be a Python script, such as "it is YAML"; "" if it can be one.

    A named pipe is not read, because only the worker may read it.
    """
    if data := next((data for ending, data in DATA_FILES.items() if path.endswith(ending)), ""):
        return f"it is {data}"
    if path.endswith(".py") or kind_of(path) is not FileKind.FILE:
        return ""
    with Path(path).open("rb") as file:
        first = file.readline(200).rstrip().decode(errors="replace")
    if first.startswith("\x7fELF"):
        return "it is a compiled program"
    if first.startswith("#!") and "python" not in first:
        return f"it begins with {first}"
    return "it is a shell script" if path.endswith((".sh", ".bash")) else ""


def find_executable(name: str, search_path: str) -> str:
    """Return the path of the program ``name``, which is on ``search_path`` unless it has a /.

    Returns "" if there is no such file or this user may not execute it.
    """
    if "/" in name:
        return name if is_executable(name) else ""
    folders = search_path.split(os.pathsep) if name else []
    paths = (f"{folder or '.'}/{name}" for folder in folders)
    return next((path for path in paths if is_executable(path)), "")


def find_interpreter(python: Setting[str], search_path: str) -> str:
    """Return the path of the interpreter ``python``, which may be a name on ``search_path``.

    Raises:
        UsageError: there is no such program.

    """
    if found := find_executable(python.value, search_path):
        return found
    from clusterrun.job.mistakes import wrong_interpreter

    raise wrong_interpreter(python.value, f"{python.origin}: ")


def default_interpreter(
    program: WorkerProgram, process: ThisProcess, variables: Mapping[str, str]
) -> Setting[str]:
    """Return the interpreter of the workers if no option sets it.

    It is that of the active environment if only that environment has torch, because clusterrun may be
    installed apart, as by ``uv tool install``; else it is clusterrun's own.
    """
    active = active_environment(process.python, variables)
    if active and is_user_python(program) and not process.has_torch():
        from clusterrun.job.site_packages import has_package

        python = f"{active.value}/bin/python"
        if is_executable(python) and has_package(active.value, "torch"):
            return Setting(python, active.origin)
    return Setting(process.python, "default")


def active_environment(python: str, variables: Mapping[str, str]) -> Setting[str] | None:
    """Return the folder of the active environment; None if there is none or ``python`` is in it.

    If both a virtual environment and a conda environment are active, the one that is first on PATH
    counts.
    """
    folders = variables.get("PATH", "").split(os.pathsep)

    def position(active: Setting[str]) -> int:
        commands = f"{active.value}/bin"
        return folders.index(commands) if commands in folders else len(folders)

    names = ("VIRTUAL_ENV", "CONDA_PREFIX")
    found = [Setting(variables[name].rstrip("/"), name) for name in names if variables.get(name)]
    innermost = min(found, key=position, default=None)
    # bin/python is a link, so its folder tells the environment, not its target.
    if innermost and Path(python).parent.parent.resolve() == Path(innermost.value).resolve():
        return None
    return innermost


def is_user_python(program: WorkerProgram) -> bool:
    """Return whether this is a Python program that is not a part of clusterrun."""
    if program.kind is ProgramKind.MODULE:
        return not program.name.startswith("clusterrun.")
    ours = f"{Path(__file__).parents[1]}/"
    return program.kind is not ProgramKind.EXECUTABLE and not program.name.startswith(ours)


def active_environment_warnings(python: str, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if ``python`` is not the interpreter of the active virtual environment."""
    active = active_environment(python, variables)
    if active is None or active.origin != "VIRTUAL_ENV":
        return
    its_python = f"{active.value}/bin/python"
    if is_executable(its_python):
        yield (
            f"workers use {python}, as clusterrun does, not the Python of the active environment"
            f" {active.value} (VIRTUAL_ENV); to use that one, add --python {its_python}"
        )


def check_hook(hook: Setting[tuple[str, ...]], search_path: str) -> None:
    """Check that ``hook``, if it is not empty, begins with a program.

    Raises:
        UsageError: the program does not exist or is not executable.

    """
    if hook.value and not find_executable(hook.value[0], search_path):
        from clusterrun.job.mistakes import wrong_hook

        raise wrong_hook(hook.value[0], f"{hook.origin}: ")


def misplaced_options(program: WorkerProgram, options: Mapping[str, Row] = NAMES) -> Iterator[str]:
    """Yield a warning for each argument of ``program`` with the name of one of ``options``.

    Options that many scripts have, such as ``--config``, and options of commands cause a warning only
    if the script's text does not contain their name.
    """
    script = program.name
    if program.args[-1:] == (" ",):
        yield (
            f"the last argument of {script} is a space; if the line should continue, remove the"
            " space after the \\"
        )
    # Arguments after a "--" are certainly meant for the script.
    words = [arg.partition("=")[0] for arg in takewhile(lambda arg: arg != "--", program.args)]
    ours = [
        (word, options[name])
        for word in words
        if word.startswith("--") and (name := word[2:].replace("-", "_")) in options
    ]
    text = _text(program) if ours else None
    for word, row in ours:
        goes = f"{word} after {script} goes to {script}"
        if text is not None and not any(
            name in text or name.replace("_", "-") in text for name in row.names
        ):
            yield f"{goes}, which does not use it: put it before {script}"
        elif row.name in NAMES and not row.option.common_in_scripts:
            yield f"{goes}; clusterrun's own {word} must come before it"


def _check_options(sources: Sequence[Layer]) -> None:
    module, no_python = value_of("module", sources), value_of("no_python", sources)
    run_path, pass_local_rank = value_of("run_path", sources), value_of("pass_local_rank", sources)
    other = run_path if run_path.value else no_python
    if module.value and other.value:
        raise UsageError(f"{module.origin} and {other.origin} can't be used together", "remove one")
    if no_python.value and pass_local_rank.value:
        raise UsageError(
            f"{pass_local_rank.origin} can't be used with {no_python.origin}: it is for Python scripts",
            "remove it: the program can read its local rank from LOCAL_RANK",
        )


def _text(program: WorkerProgram) -> str | None:
    """Return the script's text; None if it is not a Python file."""
    is_script = program.kind in {ProgramKind.SCRIPT, ProgramKind.RUN_PATH}
    if not is_script or kind_of(program.name) is not FileKind.FILE:
        return None
    return Path(program.name).read_text(encoding="utf-8", errors="replace")
