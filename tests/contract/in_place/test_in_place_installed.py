"""Programs with installed helper modules behave the same when these are preloaded by name.

Helper modules beside the script are the user's own, and run only in workers. Installed ones are unknown and
left to the workers by default, and preloaded with ``--preload MODULE,...``.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.contract.in_place.programs_in_place import (
    PROGRAMS,
    SECONDS_TO_RUN,
    Folder,
    Program,
    with_helpers_installed,
)
from tests.contract.in_place.test_in_place import (
    ALL_PROGRAMS,
    TWO_RANKS,
    Alone,
    compared,
    lines_of_ranks,
)
from tests.contract.leading_names import leading_names

REFUSED = {
    "two_ranks/shared_while_imported/main.py": "locks and memory of all ranks",
    "unflushed_file_hung_on_a_module/main.py": "an open file",
}
"""Programs whose modules can't be preloaded, with the reason; their workers are spawned."""


def options_from_keywords(program: Program) -> tuple[str, ...]:
    names = leading_names((PROGRAMS / program.words[0]).read_text())
    forked = () if program.words[0] in REFUSED else ("--start-method", "fork")
    return ("--preload", ",".join(names), *forked)


WITH_HELPERS = sorted(
    name
    for name, program in ALL_PROGRAMS.items()
    if program.words[0].endswith("/main.py") and len(list((PROGRAMS / name).iterdir())) > 1
)

TWO_RANKS_WITH_HELPERS = [path for path in TWO_RANKS if path.name == "main.py"]

OF_TORCH = "two_ranks/random_numbers_of_torch/main.py"

DIFFERS = {
    "import_looks_at_its_caller": "the importer is the launcher, and the script has not begun",
    "imports_main_back": "the script has not begun, so that __main__ is empty",
    OF_TORCH: "what a module draws when it is imported is drawn once for all ranks",
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return the results of the programs without clusterrun."""
    folder = Folder(tmp_path_factory.mktemp("programs") / "in_place")
    folder.install_helpers()
    return Alone(folder, with_helpers_installed)


def cases(names: Iterable[object]) -> list[ParameterSet]:
    """Return a case for each program."""
    return [pytest.param(name, id=str(name), marks=marks_of(str(name))) for name in names]


def marks_of(name: str) -> tuple[pytest.MarkDecorator, ...]:
    marks = (pytest.mark.long,) if name == OF_TORCH else ()
    if name in DIFFERS:
        return (*marks, pytest.mark.xfail(reason=DIFFERS[name], strict=True))
    return marks


@pytest.mark.timeout(2 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize("name", cases(WITH_HELPERS))
def test_program_equals_plain_python(alone: Alone, name: str) -> None:
    """The same output, errors, exit code and files."""
    program = ALL_PROGRAMS[name]

    left = alone.folder.launched(with_helpers_installed(program), *options_from_keywords(program))

    assert left == alone.left(name)


@pytest.mark.timeout(3 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize("path", cases(TWO_RANKS_WITH_HELPERS))
def test_ranks_differ_as_in_fresh_interpreters(alone: Alone, path: Path) -> None:
    """Values that are equal in fresh interpreters are equal in the ranks."""
    fresh = alone.two_ranks(path)
    program = with_helpers_installed(Program((str(path),)))

    left = alone.folder.launched(program, *options_from_keywords(program), ranks=2)

    assert (left.code, left.err) == (0, "")
    assert compared(*lines_of_ranks(left.out)) == compared(*(one.out.splitlines() for one in fresh))
