"""A program behaves the same under ``python -u`` and as a worker, forked or spawned."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.contract.in_place.programs_in_place import (
    PROGRAMS,
    SECONDS_TO_RUN,
    START_METHODS,
    Folder,
    Left,
    Program,
)

WITH_OWN_COMMAND = {
    "arguments": Program(("arguments.py", "--lr", "3", "a b", "", "-m", "-u")),
    "breakpoint_in_the_script": Program(("breakpoint_in_the_script.py",), "p number\nw\nc\n"),
    "folder_program": Program(("folder_program", "--lr")),
    "input_of_text": Program(("input_of_text.py",), "one\ntwo\nthree\nfour\n"),
    "killed_by_term": Program(("killed_by_itself.py", "15")),
    "m_raises": Program(("-m", "package_with_main.raises")),
    "main_module_of_m": Program(("-m", "main_module_of_m.main", "--lr", "3")),
    "package_with_main": Program(("-m", "package_with_main", "--lr", "3")),
    "path_absolute": Program(("{folder}/main_module.py",)),
    "path_is_a_link": Program(("link.py",), environ={"PYTHONPATH": "on_pythonpath"}),
    "safe_path": Program(("arguments.py",), environ={"PYTHONSAFEPATH": "1"}),
    "sitecustomize_sees_its_program": Program(
        ("sitecustomize_sees_its_program.py", "-x"), environ={"PYTHONPATH": "looking_sitecustomize"}
    ),
    "warning_is_an_error": Program(("invalid_escape.py",), environ={"PYTHONWARNINGS": "error"}),
    "zipped": Program(("zipped.zip",)),
}
"""Programs that are not started by the path of a file or of a ``main.py`` in a folder."""

WITH_OWN_COMMAND |= {
    f"exit_{how.replace('-', 'minus_')}": Program(("exit_codes.py", how))
    for how in (
        *("0", "7", "-1", "256", "300", "none", "bare", "true", "float", "huge", "object", "tuple"),
        *("text", "quit", "subclass", "chained", "finally"),
    )
}
NOT_STARTED_BY_NAME = {"exit_codes", "killed_by_itself", "own_ddp"}
"""They need an argument, or another rank."""


NOT_FORKED = {
    "folder_program": "folder_program is not a file with Python source",
    "sitecustomize_sees_its_program": "sitecustomize.py may read a variable",
    "syntax_error": "syntax_error.py does not compile",
    "warning_is_an_error": "invalid_escape.py does not compile",
    "zipped": "zipped.zip ",
}
"""Programs that need a new interpreter, and what ``fork`` prints about them."""

FORK_DIFFERS = {
    "environment_as_others_see_it": "/proc/PID/environ shows the fork server's variables",
    "frame_left_behind": "a frame of the fork server is beneath the script",
    "frozen_objects_counted": "objects from before the fork are frozen",
    "names_of_the_process": "ps shows the fork server's arguments",
    "torch_and_its_threads": "libraries start their threads again when needed",
    "tracing_to_the_end": "a trace function sees calls of the fork server",
    "two_ranks/hashes_of_texts.py": "one process has one seed for hashes",
    "uncaught_recursion": "a frame of the fork server is beneath the script",
}
"""What a forked worker does differently, and why; each is a strict xfail, see docs/workers.md."""


SLOW = {
    *("torch_and_its_threads", "torch_data", "torch_training"),
    "two_ranks/random_numbers_of_torch/main.py",
}
"""Programs with torch; they are marked as long."""

USE_THE_STARTUP_OF_A_SPAWNED_WORKER = {
    *("arguments", "environment", "environment_for_children", "executes_itself", "exit_7"),
    *(
        "input_of_text",
        "killed_by_term",
        "main_module",
        "main_module_of_m",
        "modules_after_imports",
    ),
    *("names_of_the_process", "open_descriptors", "package_with_main", "process_by_spawn"),
    *("shadows_stdlib", "signal_dispositions", "sitecustomize_sees_its_program"),
    *("standard_streams", "uncaught"),
}
"""For other programs a spawned worker is just ``python -u``; those cases are marked as long."""


def all_programs() -> dict[str, Program]:
    """Return each program with its name: those of the folder, and those with their own command."""
    files = {path.stem: (path.name,) for path in PROGRAMS.glob("*.py")}
    folders = {
        path.parent.name: (f"{path.parent.name}/main.py",) for path in PROGRAMS.glob("*/main.py")
    }
    paths = {
        name: path for name, path in (files | folders).items() if name not in NOT_STARTED_BY_NAME
    }
    return {name: Program(words) for name, words in paths.items()} | WITH_OWN_COMMAND


ALL_PROGRAMS = all_programs()

TWO_RANKS = sorted(
    {path.relative_to(PROGRAMS) for path in PROGRAMS.glob("two_ranks/*.py")}
    | {path.relative_to(PROGRAMS) for path in PROGRAMS.glob("two_ranks/*/main.py")}
)
"""Programs that print one fact a line, in the same order on each rank."""

EXIT_CODES = [name for name in ALL_PROGRAMS if name.startswith("exit_")]

OTHER_EXIT_CODES = {*EXIT_CODES} - {"exit_0", "exit_7", "exit_text"}


class Alone:
    """The result of each program under Python alone, run once."""

    def __init__(
        self, folder: Folder, as_run: Callable[[Program], Program] = lambda program: program
    ) -> None:
        """Take the folder with the programs, and a function that changes each before it runs."""
        self.folder = folder
        self.as_run = as_run
        self.left = functools.cache(self._left)
        self.two_ranks = functools.cache(self._two_ranks)

    def _left(self, name: str) -> Left:
        return self.folder.alone(self.as_run(ALL_PROGRAMS[name]))

    def _two_ranks(self, path: Path) -> list[Left]:
        program = self.as_run(Program((str(path),)))
        return [self.folder.alone(program, rank, ranks=2) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return the results of the programs without clusterrun."""
    return Alone(Folder(tmp_path_factory.mktemp("programs") / "in_place"))


def cases(names: Iterable[object]) -> list[ParameterSet]:
    """Return a case for each program and start method."""
    return [
        pytest.param(name, method, id=f"{name}-{method}", marks=marks_of(str(name), method))
        for name in names
        for method in START_METHODS
    ]


def marks_of(name: str, method: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a program with a start method."""
    is_spawned_alike = method == "spawn" and name not in USE_THE_STARTUP_OF_A_SPAWNED_WORKER
    is_long = is_spawned_alike or name in SLOW | OTHER_EXIT_CODES
    marks = (pytest.mark.long,) if is_long else ()
    if method == "fork" and name in FORK_DIFFERS:
        return (*marks, pytest.mark.xfail(reason=FORK_DIFFERS[name], strict=True))
    return marks


@pytest.mark.timeout(2 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(("name", "method"), cases(sorted(ALL_PROGRAMS)))
def test_program_equals_plain_python(alone: Alone, name: str, method: str) -> None:
    """The same output, errors, exit code and files."""
    expected = alone.left(name)
    chosen = "auto" if method == "fork" and name in NOT_FORKED else method

    left = alone.folder.launched(ALL_PROGRAMS[name], "--start-method", chosen)

    assert left == expected


@pytest.mark.parametrize("name", NOT_FORKED)
def test_start_method_fork_refuses_program(alone: Alone, name: str) -> None:
    """With ``--start-method fork``, a program that can't be run in place is not run."""
    job = alone.folder.started(ALL_PROGRAMS[name], "--start-method", "fork")

    assert (job.code, job.out) == (126, "")
    assert NOT_FORKED[name] in job.err


@pytest.mark.timeout(3 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(("path", "method"), cases(TWO_RANKS))
def test_ranks_differ_as_in_fresh_interpreters(alone: Alone, path: Path, method: str) -> None:
    """Values that are equal in fresh interpreters are equal in the ranks."""
    fresh = alone.two_ranks(path)
    assert [left.err for left in fresh] == ["", ""]

    left = alone.folder.launched(Program((str(path),)), "--start-method", method, ranks=2)

    assert (left.code, left.err) == (0, "")
    assert compared(*lines_of_ranks(left.out)) == compared(*(one.out.splitlines() for one in fresh))


def lines_of_ranks(out: str) -> list[list[str]]:
    """Return the lines of each rank, without prefix."""
    labels = [f"[rank {rank}] " for rank in range(2)]
    lines = out.splitlines()
    return [[ln.removeprefix(label) for ln in lines if ln.startswith(label)] for label in labels]


def compared(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return each fact: its value if it is equal on both ranks, both values if it is about the rank.

    For other facts, only "they differ" is returned.
    """
    pairs = zip(first, second, strict=True)
    return [
        one if one == other else f"{one} / {other}" if one.startswith("rank") else "they differ"
        for one, other in pairs
    ]
