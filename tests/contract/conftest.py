"""Fixtures of all contract tests."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterrun.run import launch

from tests.contract.changed_times import command_with
from tests.contract.launched import COMMAND, COMMON_VARIABLES, Launcher
from tests.contract.shell import Shell
from tests.workers.interpreters import OTHER_VERSIONS, environment_without_pth, lacking, python_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with each Python of ``--workers-python``."""
    versions = metafunc.config.getoption("workers_python")
    if versions == ["others"]:
        versions = list(filter(python_of, OTHER_VERSIONS))
    elif versions == ["oldest-and-newest"]:
        oldest, *newer = filter(python_of, OTHER_VERSIONS)
        versions = [oldest, *newer[-1:]]
    if versions:
        metafunc.parametrize("workers_python", versions, indirect=True)


@pytest.fixture(autouse=True)
def workers_python(
    request: pytest.FixtureRequest,
    environment_of: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Set the Python of the workers, unless the test sets another."""
    version = getattr(request, "param", None)
    if version is None:
        return
    python, text = environment_of(version), inspect.getsource(request.function)
    if lacks := [each for each in lacking(python) if re.search(rf"\b{each}\b", text)]:
        pytest.skip(f"Python {version} lacks {', '.join(lacks)} here")
    monkeypatch.setitem(COMMON_VARIABLES, "CLUSTERRUN_PYTHON", python)


@pytest.fixture(scope="session")
def environment_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function from the version of a Python to an interpreter in a new environment."""

    @functools.cache
    def environment(version: str) -> str:
        python = python_of(version)
        assert python, f"--workers-python: Python {version} is not installed"
        return environment_without_pth(python, tmp_path_factory.mktemp("python") / version)

    return environment


@pytest.fixture
def impatient(clusterrun: Launcher) -> Launcher:
    """Return a launcher that waits only 0.3 s at its end for readers of its output."""
    clusterrun.program = command_with(clusterrun.folder, launch, "SECONDS_TO_PRINT", 0.3)
    return clusterrun


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher that starts jobs by a link named ``torchrun``."""
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "torchrun"
    link.symlink_to(COMMAND)
    launcher = Launcher(tmp_path, str(link))

    yield launcher

    launcher.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell at a terminal; after the test, no process started in it is left."""
    shell = Shell(tmp_path)

    yield shell

    shell.close()
