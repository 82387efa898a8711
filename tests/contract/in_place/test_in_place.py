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

ON_PYTHONPATH = {"PYTHONPATH": "on_pythonpath"}

WITH_OWN_COMMAND = {
    "alone_in_its_folder": Program(("name_is_main.py",)),
    "arguments": Program(("arguments.py", "--lr", "3", "a b", "", "-m", "-u")),
    "arguments_before_imports": Program(("arguments_before_imports/main.py", "--lr", "3")),
    "breakpoint_in_the_script": Program(("breakpoint_in_the_script.py",), "p number\nw\nc\n"),
    "breakpoint_quit": Program(("breakpoint_in_the_script.py",), "q\n"),
    "breakpoint_turned_off": Program(
        ("breakpoint_turned_off.py",), environ={"PYTHONBREAKPOINT": "0"}
    ),
    "cookie": Program(("cookie.py",)),
    "debugger_after_the_end": Program(("debugger_after_the_end.py",), "p number\nw\nup\nl\nq\n"),
    "dev_mode": Program(("unflushed_file.py",), environ={"PYTHONDEVMODE": "1"}),
    "folder_program": Program(("folder_program", "--lr")),
    "hashes": Program(("hashes.py",), environ={"PYTHONHASHSEED": "3"}),
    "help_of_the_script": Program(("usage_error.py", "--help")),
    "input_of_text": Program(("input_of_text.py",), "one\ntwo\nthree\nfour\n"),
    "interactive_mode": Program(
        ("interactive_mode.py",), "print(VALUE)\nexit(3)\n", {"PYTHONINSPECT": "1"}
    ),
    "locale_by_environment": Program(
        ("locale_by_environment.py",), environ={"LC_ALL": "C", "TZ": "Asia/Kolkata"}
    ),
    "main_module_of_m": Program(("-m", "main_module_of_m.main", "--lr", "3")),
    "memory_traced": Program(("memory_traced.py",), environ={"PYTHONTRACEMALLOC": "5"}),
    "module_from_pythonpath": Program(("module_from_pythonpath.py",), environ=ON_PYTHONPATH),
    "module_of_m_is_missing": Program(("-m", "no_such_module_anywhere")),
    "module_of_m_is_a_package_without_main": Program(("-m", "main_module_of_m")),
    "no_extension": Program(("no_extension", "-x")),
    "optimized": Program(("name_is_main.py",), environ={"PYTHONOPTIMIZE": "2"}),
    "package_that_imports_its_main": Program(("-m", "package_that_imports_its_main.tool")),
    "package_with_main": Program(("-m", "package_with_main", "--lr", "3")),
    "path_absolute": Program(("{folder}/main_module.py",)),
    "path_roundabout": Program(("./reloads/../main_module.py",)),
    "path_is_a_link": Program(("link.py",), environ={"PYTHONPATH": "on_pythonpath"}),
    "safe_path": Program(("arguments.py",), environ={"PYTHONSAFEPATH": "1"}),
    "segfault_by_environment": Program(
        ("segfault_by_environment.py",), environ={"PYTHONFAULTHANDLER": "1"}
    ),
    "sitecustomize_is_heard": Program(("sitecustomize_is_heard.py", "-x"), environ=ON_PYTHONPATH),
    "sitecustomize_sees_its_program": Program(
        ("sitecustomize_sees_its_program.py", "-x"), environ={"PYTHONPATH": "looking_sitecustomize"}
    ),
    "standard_streams_by_environment": Program(
        ("standard_streams_by_environment.py",), environ={"PYTHONIOENCODING": "latin-1:replace"}
    ),
    "usage_error": Program(("usage_error.py", "--lr", "x")),
    "utf8_mode": Program(("standard_streams.py",), environ={"PYTHONUTF8": "1", "LC_ALL": "C"}),
    "verbose_warnings": Program(
        ("warning_at_module_level.py",), environ={"PYTHONWARNINGS": "always"}
    ),
    "warning_options": Program(("warning_options.py",), environ={"PYTHONWARNINGS": "error"}),
    "zipped": Program(("zipped.zip",)),
}
"""Programs that are not started by the path of a file or of a folder's ``main.py``."""

WITH_OWN_COMMAND |= {
    f"m_{name}": Program(("-m", f"package_with_main.{name}"))
    for name in ("raises", "frames", "imported_twice", "pool")
}
WITH_OWN_COMMAND |= {
    f"exit_{how.replace('-', 'minus_')}": Program(("exit_codes.py", how))
    for how in (
        *("0", "7", "-1", "256", "300", "none", "bare", "true", "float", "huge", "object", "tuple"),
        *("text", "quit", "subclass", "chained", "finally"),
    )
}
WITH_OWN_COMMAND |= {
    f"killed_by_{name}": Program(("killed_by_itself.py", str(number)))
    for name, number in {"hangup": 1, "kill": 9, "user_1": 10, "term": 15, "realtime": 40}.items()
}
NOT_STARTED_BY_NAME = {"exit_codes", "killed_by_itself", "own_ddp"}
"""They need an argument, or another rank."""


NOT_FORKED = {
    "folder_program": "folder_program is no file with Python source",
    "interactive_mode": "PYTHONINSPECT is set",
    "memory_traced": "PYTHONTRACEMALLOC is set",
    "sitecustomize_sees_its_program": "sitecustomize.py may read a variable",
    "syntax_error": "syntax_error.py does not compile",
    "zipped": "zipped.zip ",
}
"""Programs that need a new interpreter, and what ``fork`` prints about them."""

FORK_DIFFERS = {
    "environment_as_others_see_it": "/proc/PID/environ shows the fork server's variables",
    "frame_left_behind": "a frame of ours lies beneath the script",
    "frozen_objects_counted": "what was imported before is kept from the collector",
    "names_of_the_process": "ps shows the fork server's arguments",
    "torch_and_its_threads": "threads of libraries are made anew when they are needed",
    "tracing_to_the_end": "a trace function sees calls of ours",
    "two_ranks/hashes_of_texts.py": "one process has one seed for hashes",
    "uncaught_recursion": "a frame of ours lies beneath the script",
}
"""What a forked worker does differently, and why; each is a strict xfail, see docs/workers.md."""


SLOW = {
    *("torch_and_c_at_exit", "torch_and_its_process", "torch_and_its_threads", "torch_data"),
    *("torch_training", "two_ranks/random_numbers_of_torch/main.py", "memory_traced"),
}
"""Programs for the second tier: with torch, they train, or others test the same without it."""

ALWAYS_SPAWNED_TOO = {
    *("arguments", "environment", "environment_for_children", "executes_itself", "exit_7"),
    *("input_of_text", "killed_by_term", "main_module_of_m", "module_from_pythonpath"),
    *("modules_after_imports", "names_of_the_process", "open_descriptors", "package_with_main"),
    *("process_by_spawn", "shadows_stdlib", "signal_dispositions", "sitecustomize_is_heard"),
    *("sitecustomize_sees_its_program", "stacks_on_demand", "standard_streams", "uncaught"),
}
"""Programs that use what a spawned worker's own start-up touches."""


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


def first_of_each_kind(names: Iterable[str]) -> set[str]:
    """Return the first name, in order, of those that begin with the same word."""
    kinds: dict[str, str] = {}
    for name in sorted(names):
        kinds.setdefault(name.split("_")[0], name)
    return set(kinds.values())


FIRST_TIER = first_of_each_kind(ALL_PROGRAMS) | ALWAYS_SPAWNED_TOO | set(map(str, TWO_RANKS))
"""Programs that a forked worker runs in each check; long runs have all."""


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
    """Return the marks of a program with a start method.

    A spawned worker is ``python -u`` by construction, so most are left to long runs.
    """
    in_each_check = ALWAYS_SPAWNED_TOO if method == "spawn" else FIRST_TIER
    is_long = name in SLOW or name not in in_each_check
    marks = (pytest.mark.long,) if is_long else ()
    if method == "fork" and name in FORK_DIFFERS:
        return (*marks, pytest.mark.xfail(reason=FORK_DIFFERS[name], strict=True))
    return marks


@pytest.mark.timeout(2 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(("name", "method"), cases(sorted(ALL_PROGRAMS)))
def test_the_program_behaves_as_it_does_alone(alone: Alone, name: str, method: str) -> None:
    """The same output, errors, exit code and files."""
    expected = alone.left(name)
    chosen = "auto" if method == "fork" and name in NOT_FORKED else method

    left = alone.folder.launched(ALL_PROGRAMS[name], "--start-method", chosen)

    assert left == expected


@pytest.mark.parametrize("name", NOT_FORKED)
def test_fork_refuses_with_a_reason(alone: Alone, name: str) -> None:
    """With ``--start-method fork``, a program that can't be run in place is not run."""
    job = alone.folder.started(ALL_PROGRAMS[name], "--start-method", "fork")

    assert (job.code, job.out) == (126, "")
    assert NOT_FORKED[name] in job.err


@pytest.mark.timeout(3 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(("path", "method"), cases(TWO_RANKS))
def test_ranks_differ_where_fresh_interpreters_do(alone: Alone, path: Path, method: str) -> None:
    """Values that are equal in fresh interpreters are equal in the ranks, too."""
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
    """Return facts that are equal on both ranks as they are, and of others that they differ.

    A fact about the rank is returned in both versions.
    """
    pairs = zip(first, second, strict=True)
    return [
        one if one == other else f"{one} / {other}" if one.startswith("rank") else "they differ"
        for one, other in pairs
    ]
