"""Fixtures of the tests of commands about running jobs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import Launcher


@pytest.fixture
def clusterrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher whose jobs are all gone after the test."""
    launcher = Launcher(tmp_path)

    yield launcher

    launcher.close()


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return the variable that gives the jobs of the test a folder of their own."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}
