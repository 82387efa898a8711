"""What the workers run: a script, a module or any program."""

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec, Program, ProgramKind, StartMethod
from clusterrun.errors import UsageError
from clusterrun.sources.options.suggestions import command
from clusterrun.sources.programs.executables import expect_program
from clusterrun.sources.programs.scripts import expect_script


class Manner(Struct, frozen=True):
    """How the options say that the program is run."""

    module: Fact[bool]
    no_python: Fact[bool]
    run_path: Fact[bool]
    """Beats ``no_python``, as torchrun has it."""
    pass_local_rank: Fact[str]
    """The argument for it, "" for none."""


COMMAND_LINE = "command line"
"""Origin of a program whose words stand there."""


def find_program(words: Fact[tuple[str, ...]], manner: Manner, search_path: str) -> Fact[Program]:
    """Return what the workers run; ``words`` are its name and its arguments.

    Raises:
        UsageError: there is none, or it cannot be run in the way that the options say.

    """
    _expect_one(manner)
    if not words.value:
        raise UsageError("there is no script to run", f"for example:\n  {command('train.py')}")
    where = "" if words.origin == COMMAND_LINE else f"{words.origin}: "
    name, *args = words.value
    if manner.run_path.value:
        kind = ProgramKind.RUN_PATH
        expect_script(words.value, where, search_path)
    elif manner.no_python.value:
        kind = ProgramKind.EXECUTABLE
        expect_program(name, where, search_path)
    elif manner.module.value:
        kind = ProgramKind.MODULE
        _expect_module(name, where)
    else:
        kind = ProgramKind.SCRIPT
        if name != "-":
            expect_script(words.value, where, search_path)
    return Fact(Program(kind, name, tuple(args)), words.origin)


def expect_read_once(job: JobSpec) -> None:
    """Return if no more than one worker, once, needs a script that is on standard input.

    How many workers a node has is known only once the machine is, and checked then.

    Raises:
        UsageError: several would read it.

    """
    if not job.program.value.is_standard_input:
        return
    trouble = ""
    if job.agents > 1:
        trouble = f"nnodes is {job.nnodes}"
    elif job.max_restarts.value:
        trouble = f"max_restarts is {job.max_restarts}"
    elif job.start_method.value is StartMethod.FORK:
        trouble = f"start_method is fork ({job.start_method.origin})"
    if trouble:
        raise UsageError(
            f"the script is on standard input (-), which one worker can read, once, and {trouble}",
            "save it to a file and give that",
        )


def _expect_one(manner: Manner) -> None:
    other = manner.run_path if manner.run_path.value else manner.no_python
    if manner.module.value and other.value:
        raise UsageError(
            f"{manner.module.origin} and {other.origin} exclude each other", "leave one of them out"
        )
    if manner.no_python.value and manner.pass_local_rank.value:
        raise UsageError(
            f"{manner.pass_local_rank.origin} is for Python scripts, not for {manner.no_python.origin}",
            "leave it out: the program finds its local rank in LOCAL_RANK",
        )


def _expect_module(name: str, where: str) -> None:
    if not name:
        raise UsageError(f"{where}the name of the module is empty", "give one, as for python -m")
    if "/" in name or name.endswith(".py"):
        dotted = name.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".")
        raise UsageError(
            f"{where}{name} is a path, and -m takes the name of a module",
            f"for the module:\n  {command('-m', dotted)}\nfor the script:\n  {command(name)}",
        )
