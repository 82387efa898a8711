"""What the workers run: a script, a module or any program."""

from launcher.domain.facts import Fact
from launcher.domain.job import Program, ProgramKind
from launcher.errors import UsageError
from launcher.sources.executables import expect_program
from launcher.sources.scripts import expect_script
from launcher.sources.suggestions import command

COMMAND_LINE = "command line"
"""Origin of a program whose words stand there."""


def find_program(
    words: Fact[tuple[str, ...]], module: Fact[bool], no_python: Fact[bool], search_path: str
) -> Fact[Program]:
    """Return what the workers run; ``words`` are its name and its arguments.

    Raises:
        UsageError: there is none, or it cannot be run in the way that the options say.

    """
    if module.value and no_python.value:
        raise UsageError(
            f"{module.origin} and {no_python.origin} exclude each other", "leave one of them out"
        )
    if not words.value:
        raise UsageError("there is no script to run", f"for example:\n  {command('train.py')}")
    where = "" if words.origin == COMMAND_LINE else f"{words.origin}: "
    name, *args = words.value
    if no_python.value:
        kind = ProgramKind.EXECUTABLE
        expect_program(name, where, search_path)
    elif module.value:
        kind = ProgramKind.MODULE
        _expect_module(name, where)
    else:
        kind = ProgramKind.SCRIPT
        expect_script(words.value, where, search_path)
    return Fact(Program(kind, name, tuple(args)), words.origin)


def _expect_module(name: str, where: str) -> None:
    if not name:
        raise UsageError(f"{where}the name of the module is empty", "give one, as for python -m")
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise UsageError(
            f"{where}{name} is a path, and -m takes the name of a module",
            f"for the module:\n  {command('-m', dotted)}\nfor the script:\n  {command(name)}",
        )
