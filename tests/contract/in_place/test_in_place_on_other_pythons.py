"""Programs behave the same on each Python that workers may run on."""

import re

import pytest

from tests.contract.in_place.programs_in_place import PROGRAMS, Folder, Program
from tests.contract.in_place.test_in_place import ALL_PROGRAMS, FORK_DIFFERS, NOT_FORKED
from tests.workers.interpreters import OLDEST, OTHER_VERSIONS, python_of

ON_EVERY_VERSION = (
    *("atexit_after_an_exception", "atexit_order_of_modules", "exit_0", "exit_7", "exit_text"),
    *("main_module_of_m", "package_with_main", "unflushed_file"),
)

NOT_ON_OTHERS = {"exit_huge": "an exit code that is too large leaves an error behind, from 3.12"}

NOT_INSTALLED_THERE = re.compile(r"\b(torch|numpy|accelerate|lightning|debugpy)\b")


def needs_packages(program: Program) -> bool:
    """Return whether a program imports packages that other interpreters may lack."""
    file = PROGRAMS / program.words[0]
    return file.is_file() and bool(NOT_INSTALLED_THERE.search(file.read_text()))


WITHOUT_PACKAGES = [
    name
    for name, program in sorted(ALL_PROGRAMS.items())
    if not needs_packages(program)
    and not {name} & (NOT_ON_OTHERS.keys() | NOT_FORKED.keys() | FORK_DIFFERS.keys())
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(version, marks=() if version == OLDEST else pytest.mark.long)
        for version in OTHER_VERSIONS
    ],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Return the programs, for another Python."""
    python = python_of(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} here")
    return Folder(tmp_path_factory.mktemp("programs") / "in_place", python)


@pytest.mark.parametrize("name", ON_EVERY_VERSION)
def test_program_on_every_version(folder: Folder, name: str) -> None:
    """Uncaught exceptions, exit codes, ``__main__``, exit handlers, open files."""
    assert_same(folder, name)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in WITHOUT_PACKAGES if n not in ON_EVERY_VERSION])
def test_program_on_version(folder: Folder, name: str) -> None:
    """All other programs that need only Python."""
    assert_same(folder, name)


def assert_same(folder: Folder, name: str) -> None:
    """Assert that the program, forked, behaves as it does alone."""
    expected = folder.alone(ALL_PROGRAMS[name])

    assert folder.launched(ALL_PROGRAMS[name], "--start-method", "fork") == expected


def test_tables_name_programs() -> None:
    """A renamed program must be renamed in the tables."""
    assert {*ON_EVERY_VERSION, *NOT_ON_OTHERS} <= ALL_PROGRAMS.keys()
    assert len(WITHOUT_PACKAGES) > 60
