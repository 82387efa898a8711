"""Programs with installed helper modules behave the same, with any set of preloaded modules.

Helper modules beside the script are the user's own, and run in workers only. Installed, they
are unknown and left to the workers by default, and preloaded with ``--preload MODULE,...``.
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
    ALL_PROGRAMS,
    TWO_RANKS,
    Alone,
    compared,
    lines_of_ranks,
)
from tests.contract.leading_names import leading_names

WAYS = ("list", "named")
"""Preload only the verified packages; or preload all imports by their names."""

REFUSED = {
    "two_ranks/shared_while_imported/main.py": "locks and memory of all ranks",
    "unflushed_file_hung_on_a_module/main.py": "an open file",
}
"""Whose modules are refused if they are named, so that workers are spawned, and for what."""


def options_of(program: Program, way: str) -> tuple[str, ...]:
    names = leading_names((PROGRAMS / program.words[0]).read_text()) if way == "named" else []
    forked = () if names and program.words[0] in REFUSED else ("--start-method", "fork")
    return (*(("--preload", ",".join(names)) if names else ()), *forked)


WITH_HELPERS = sorted(
    name
    for name, program in ALL_PROGRAMS.items()
    if program.words[0].endswith("/main.py")
    and len(list((PROGRAMS / name).iterdir())) > 1
    # First on the path, they would shadow Python's own modules for the launcher, too.
    and not name.startswith("shadows_")
)

TWO_RANKS_WITH_HELPERS = [path for path in TWO_RANKS if path.name == "main.py"]

DRAWN = "what a module draws when it is imported is drawn once for all ranks"

NAMED_DIFFERS = {
    "import_looks_at_its_caller": "the importer is the launcher, and the script has not begun",
    "imports_main_back": "the script has not begun, so that __main__ is empty",
    "two_ranks/random_numbers_of_torch/main.py": DRAWN,
}
"""What differs in modules that are preloaded because they were named."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Return the results of the programs without clusterrun."""
    folder = Folder(tmp_path_factory.mktemp("programs") / "in_place")
    folder.install_helpers()
    return Alone(folder, with_helpers_installed)


def marks_of(name: str, way: str) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of a program with one set of options.

    With the list, an installed module runs in workers only, as one beside the script; torch's
    random numbers differ there as in a script's own folder.
    """
    takes_long = way == "list" or name.startswith("two_ranks/random_numbers_of_torch")
    marks = [pytest.mark.long] if takes_long else []
    if way == "named" and name in NAMED_DIFFERS:
        marks.append(pytest.mark.xfail(reason=NAMED_DIFFERS[name], strict=True))
    return tuple(marks)


@pytest.mark.timeout(2 * SECONDS_TO_RUN + 60)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(name, way, id=f"{name}-{way}", marks=marks_of(name, way))
        for name in WITH_HELPERS
        for way in WAYS
    ],
)
def test_the_program_behaves_as_it_does_alone(alone: Alone, name: str, way: str) -> None:
    """The same output, errors, exit code and files."""
    expected = alone.left(name)

    left = alone.folder.launched(
        with_helpers_installed(ALL_PROGRAMS[name]), *options_of(ALL_PROGRAMS[name], way)
    )

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
    """Values that are equal in fresh interpreters are equal in the ranks, too."""
    fresh = alone.two_ranks(path)
    program = with_helpers_installed(Program((str(path),)))

    options = options_of(program, way)
    left = alone.folder.launched(program, *options, ranks=2)

    assert (left.code, left.err) == (0, "")
    assert compared(*lines_of_ranks(left.out)) == compared(*(one.out.splitlines() for one in fresh))
