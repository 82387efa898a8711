"""Programs can't tell how they were started, on any Python that workers may run on."""

import functools
import re
import sys

import pytest

from tests.contract.in_place.programs_in_place import PROGRAMS, Folder, Program
from tests.contract.in_place.test_in_place import EVERY_PROGRAM, FORK_DIFFERS, NOT_FORKED
from tests.workers.interpreters import VERSIONS, python_of

THIS_VERSION = "{}.{}".format(*sys.version_info)

ON_EVERY_VERSION = (
    *("atexit_after_an_exception", "exit_text", "main_module_of_m", "package_with_main"),
    *("threading_atexit", "unflushed_file"),
)

NOT_ON_OTHERS = {
    "debugger_after_the_end": "pdb catches a signal when it is imported, from 3.13: not forked",
    "dev_mode": "3.8 crashes where a forked process ends so: found by the self-test, not forked",
    "exit_huge": "an exit code that is too large leaves an error behind, from 3.12",
    "forks_from_a_thread": "Python says the process's number, from 3.12",
    "shadows_stdlib_later": "Python says what to rename, from 3.13",
    "temporary_folder_left": "a file is said to be open, from 3.12",
    "thread_started_by_atexit": "3.12 refuses it",
}

THAT_ARE_NOT_INSTALLED = re.compile(r"\b(torch|numpy|accelerate|lightning|debugpy)\b")


def needs_packages(program: Program) -> bool:
    """Tell whether a program imports what other interpreters need not have."""
    file = PROGRAMS / program.words[0]
    return file.is_file() and bool(THAT_ARE_NOT_INSTALLED.search(file.read_text()))


OF_PYTHON_ALONE = [
    name
    for name, program in sorted(EVERY_PROGRAM.items())
    if not needs_packages(program)
    and not {name} & (NOT_ON_OTHERS.keys() | NOT_FORKED.keys() | FORK_DIFFERS.keys())
]


@pytest.fixture(scope="module", params=[v for v in VERSIONS if v != THIS_VERSION])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return the programs, for another Python."""
    python = _python_of(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here")
    return Folder(tmp_path_factory.mktemp("programs") / "in_place", python)


_python_of = functools.cache(python_of)


@pytest.mark.parametrize("name", ON_EVERY_VERSION)
def test_a_program_in_place(folder: Folder, name: str) -> None:
    """Exceptions that nobody catches, exit codes, ``__main__``, atexit, files that are left open."""
    assert_same(folder, name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in OF_PYTHON_ALONE if n not in ON_EVERY_VERSION])
def test_all_programs_in_place(folder: Folder, name: str) -> None:
    """And all else that needs nothing but Python."""
    assert_same(folder, name)


def assert_same(folder: Folder, name: str) -> None:
    """Forked, the program does what it does alone."""
    expected = folder.alone(EVERY_PROGRAM[name])

    assert folder.launched(EVERY_PROGRAM[name], "--start-method", "fork") == expected


def test_each_of_these_is_a_program() -> None:
    """None has been renamed."""
    assert {*ON_EVERY_VERSION, *NOT_ON_OTHERS} <= EVERY_PROGRAM.keys()
    assert len(OF_PYTHON_ALONE) > 100
