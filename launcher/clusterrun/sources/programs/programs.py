"""The program of the workers: a script, a module or any executable."""

from collections.abc import Sequence

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import Program, ProgramKind
from clusterrun.errors import UsageError
from clusterrun.job.options import OPTIONS
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.suggestions import command
from clusterrun.sources.programs.executables import check_program
from clusterrun.sources.programs.scripts import check_script

COMMAND_LINE = "command line"
"""Origin of a program that is set there."""


def find_program(
    words: Fact[tuple[str, ...]], sources: Sequence[Layer], search_path: str
) -> Fact[Program]:
    """Return the workers' program; ``words`` are its name and its arguments."""
    _check_options(sources)
    if not words.value:
        raise UsageError(
            "no script given", _taken(sources) or f"for example:\n  {command('train.py')}"
        )
    where = "" if words.origin == COMMAND_LINE else f"{words.origin}: "
    name, *args = words.value
    # As in torchrun, --run-path is stronger than --no-python.
    if value_of("run_path", sources).value:
        kind = ProgramKind.RUN_PATH
        check_script(words.value, where, search_path)
    elif value_of("no_python", sources).value:
        kind = ProgramKind.EXECUTABLE
        check_program(name, where, search_path)
    elif value_of("module", sources).value:
        kind = ProgramKind.MODULE
        _check_module(name, where)
    else:
        kind = ProgramKind.SCRIPT
        if name != "-":
            check_script(words.value, where, search_path)
    return Fact(Program(kind, name, tuple(args)), words.origin)


def _taken(sources: Sequence[Layer]) -> str:
    """Return what to type if an option that needs a value has the script for it: ``--debug x.py``."""
    for name, texts in sources[0].items():
        row, text = OPTIONS.get(name), texts[-1]
        if row and row.metavar and not row.value.completes and text.value.endswith(".py"):
            line = command(text.origin, row.metavar, text.value)
            return f"{text.value} is the value of {text.origin}; type one before it:\n  {line}"
    return ""


def _check_options(sources: Sequence[Layer]) -> None:
    module, no_python = value_of("module", sources), value_of("no_python", sources)
    run_path, pass_local_rank = value_of("run_path", sources), value_of("pass_local_rank", sources)
    other = run_path if run_path.value else no_python
    if module.value and other.value:
        raise UsageError(
            f"{module.origin} and {other.origin} cannot be used together", "leave one out"
        )
    if no_python.value and pass_local_rank.value:
        raise UsageError(
            f"{pass_local_rank.origin} cannot be used with {no_python.origin}: it is for Python scripts",
            "leave it out: the program can read its local rank from LOCAL_RANK",
        )


def _check_module(name: str, where: str) -> None:
    if not name:
        raise UsageError(
            f"{where}the name of the module is empty",
            f"for example:\n  {command('-m', 'package.module')}",
        )
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise UsageError(
            f"{where}{name} is a path, not the name of a module",
            f"for the module:\n  {command('-m', dotted)}\nfor the script:\n  {command(name)}",
        )
