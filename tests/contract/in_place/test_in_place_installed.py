"""Programs whose helper modules are installed do the same, whatever is imported before a fork.

Beside the script they are the user's own, and run in workers only. Installed, they are left to the
workers by default, as nobody knows them, and imported before the fork with ``--preload all``.
"""

from pathlib import Path

import pytest

from tests.contract.in_place.programs_in_place import (
    PROGRAMS,
    SECONDS_TO_RUN,
    Folder,
    Program,
    with_helpers_installed,
)
from tests.contract.in_place.test_in_place import (
    EVERY_PROGRAM,
    TWO_RANKS,
    Alone,
    compared,
    of_each_rank,
)

WAYS = {
    "list": ("--start-method", "fork"),
    "all": ("--preload", "all"),
}
"""How the launcher is asked: the verified list, which it is made to fork with, and all imports."""

WITH_HELPERS = sorted(
    name
    for name, program in EVERY_PROGRAM.items()
    if program.words[0].endswith("/main.py")
    and len(list((PROGRAMS / name).iterdir())) > 1
    # In front of Python's own modules they would be the launcher's, too.
    and not name.startswith("shadows_")
)

TWO_RANKS_WITH_HELPERS = [path for path in TWO_RANKS if path.name == "main.py"]

DRAWN = "what a module draws when it is imported is drawn once for all ranks"

ALL_DIFFERS = {
    "import_looks_at_its_caller": "the importer is the launcher, and the script has not begun",
    "imports_main_back": "the script has not begun, so that __main__ is empty",
    "process_id_while_imported": "a process id that a module keeps is the fork server's",
    "two_ranks/drawn_while_imported/main.py": DRAWN,
    "two_ranks/generator_made_while_imported/main.py": DRAWN,
    "two_ranks/random_numbers_of_torch/main.py": DRAWN,
    "two_ranks/seeded_while_imported/main.py": "numbers are seeded anew in each worker",
    "two_ranks/time_while_imported/main.py": "a module is imported once for all ranks",
}
"""What modules do otherwise that are imported before the fork because all were asked for."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return what tells how the programs run without us."""
    folder = Folder(tmp_path_factory.mktemp("programs") / "in_place")
    folder.install_helpers()
    return Alone(folder, with_helpers_installed)


def marks_of(name: str, way: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return what is to be said of a program in one way.

    By the list, an installed module runs in workers only, as one beside the script does; torch's
    random numbers differ there as in a script's own folder.
    """
    if way == "list" or name.startswith("two_ranks/random_numbers_of_torch"):
        return (pytest.mark.long,)
    if name in ALL_DIFFERS:
        return (pytest.mark.xfail(reason=ALL_DIFFERS[name], strict=True),)
    return ()


@pytest.mark.timeout(2 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, id=f"{name}-{way}", marks=marks_of(name, way))
        for name in WITH_HELPERS
        for way in WAYS
    ],
)
def test_the_program_does_what_it_does_alone(alone: Alone, name: str, way: str) -> None:
    """The same output, errors, exit code and files."""
    expected = alone.left(name)

    left = alone.folder.launched(with_helpers_installed(EVERY_PROGRAM[name]), *WAYS[way])

    assert left == expected


@pytest.mark.timeout(3 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(
    ("path", "way"),
    [
        pytest.param(path, way, id=f"{path.parent}-{way}", marks=marks_of(str(path), way))
        for path in TWO_RANKS_WITH_HELPERS
        for way in WAYS
    ],
)
def test_ranks_differ_where_fresh_interpreters_do(alone: Alone, path: Path, way: str) -> None:
    """And are equal where these are."""
    fresh = alone.two_ranks(path)
    program = with_helpers_installed(Program((str(path),)))

    left = alone.folder.launched(program, *WAYS[way], ranks=2)

    assert (left.code, left.err) == (0, "")
    assert compared(*of_each_rank(left.out)) == compared(*(one.out.splitlines() for one in fresh))
