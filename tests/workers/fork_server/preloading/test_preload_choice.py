"""Only what is known to allow a fork is imported before it, in the script's order."""

import pytest

from tests.workers.door import leading_imports, packages

LATER = min(packages.SAME_IF_IMPORTED_LATER)
NOTHING_SLOW = "nothing that takes time is among what the script imports first"


def reading(*names: str, needs_only_python: bool = False) -> leading_imports.LeadingImports:
    """Return what was read in a script with these leading imports."""
    found = leading_imports.LeadingImports()
    found.found = [leading_imports.Import(name, ()) for name in names]
    found.needs_only_python = needs_only_python
    return found


def chosen(*names: str) -> tuple[list[str], str]:
    """Return the names of what is imported before eight workers are forked, and why they are not."""
    choice = packages.choose("auto", reading(*names), workers=8)
    return [wanted.name for wanted in choice.imports], choice.why_spawn


@pytest.mark.parametrize(
    ("names", "imported", "why"),
    [
        # Modules that come with Python and parts of packages are among them, in their order.
        (["os", "numpy", "json", "torch.nn"], ["os", "numpy", "json", "torch.nn"], ""),
        # What is left to the workers is known to be the same after torch.
        ([LATER, "torch"], ["torch"], ""),
        (["yaml", "torch"], ["yaml", "torch"], ""),
        # Each worker imports in no time what is quick.
        (["yaml", "tqdm"], ["yaml", "tqdm"], NOTHING_SLOW),
        (["os"], ["os"], NOTHING_SLOW),
    ],
)
def test_known_packages(names: list[str], imported: list[str], why: str) -> None:
    """They are imported before the fork if that saves time."""
    assert chosen(*names) == (imported, why)


def test_a_package_that_uses_a_gpu_is_left_to_the_workers() -> None:
    """Imported before the fork it would end that, and torch's import would be in vain."""
    choice = packages.choose("auto", reading("torch", "torch_geometric", "numpy"), workers=8)

    assert [wanted.name for wanted in choice.imports] == ["torch", "numpy"]
    assert choice.left_out == [("torch_geometric", "it uses a GPU when it is imported")]


@pytest.mark.parametrize("package", ["unknown", "ddtrace", "mpi4py"])
def test_an_unknown_package_ends_it(package: str) -> None:
    """What follows may depend on what it does."""
    names, why = chosen("numpy", package, "torch")
    nothing, why_nothing = chosen("os", package, "torch")

    assert (names, why) == (["numpy"], "")
    assert nothing == ["os"]
    assert why_nothing.startswith(f"nothing that takes time is imported before {package}: it ")


def test_an_unknown_package_ends_it_for_a_reason() -> None:
    """A package that is known to patch others is called one."""
    choice = packages.choose("auto", reading("ddtrace", "torch"), workers=8)

    assert choice.left_out == [
        ("ddtrace and what is imported after it", "it changes packages that are imported after it")
    ]


def test_one_worker_has_an_interpreter_of_its_own() -> None:
    """A fork would make it wait for a process of no other use."""
    choice = packages.choose("auto", reading("torch"), workers=1)

    assert choice.why_spawn == "a single worker shares its imports with no other"


def test_a_script_that_needs_only_python() -> None:
    """It is forked, with nothing imported before: that is faster than an interpreter for each."""
    choice = packages.choose("auto", reading("os", "json", needs_only_python=True), workers=8)

    assert (choice.imports, choice.why_spawn) == ([], "")


def test_the_tables_do_not_contradict_each_other() -> None:
    """A package is in one of them only."""
    tables = [
        packages.SAME_AFTER_A_FORK,
        packages.SAME_IF_IMPORTED_LATER,
        packages.PATCHES_OTHERS,
        packages.CONNECTS_TO_THE_OUTSIDE,
    ]

    assert sum(map(len, tables)) == len({name for table in tables for name in table})
