"""Fixtures of all contract tests."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusterrun.run import launch

from tests.contract.changed_times import command_with
from tests.contract.launched import COMMAND, OF_ALL_JOBS, Launcher
from tests.contract.shell import Shell
from tests.workers.interpreters import OTHER_VERSIONS, environment_without_pth, lacking, python_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with each Python of ``--workers-python``."""
    versions = metafunc.config.getoption("workers_python")
    if versions == ["others"]:
        versions = list(filter(python_of, OTHER_VERSIONS))
    if versions:
        metafunc.parametrize("workers_python", versions, indirect=True)


@pytest.fixture(autouse=True)
def workers_python(
    request: pytest.FixtureRequest,
    environment_of: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Make workers run this Python, unless a test sets another."""
    version = getattr(request, "param", None)
    if version is None:
        return
    python, text = environment_of(version), inspect.getsource(request.function)
    if lacks := [each for each in lacking(python) if re.search(rf"\b{each}\b", text)]:
        pytest.skip(f"Python {version} lacks {', '.join(lacks)} here")
    monkeypatch.setitem(OF_ALL_JOBS, "CLUSTERRUN_PYTHON", python)


@pytest.fixture(scope="session")
def environment_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Return a function: the version of a Python -> an interpreter, whose environment is new."""

    @functools.cache
    def made(version: str) -> str:
        python = python_of(version)
        assert python, f"--workers-python: there is no Python {version} here"
        return environment_without_pth(python, tmp_path_factory.mktemp("python") / version)

    return made


@pytest.fixture
def impatient(clusterrun: Launcher) -> Launcher:
    """Return a launcher that, at its end, soon gives up output that nothing takes."""
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
