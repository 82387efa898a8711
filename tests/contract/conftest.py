"""Fixtures of all contract tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.changed_times import command_with
from tests.contract.door import node_workers
from tests.contract.launched import COMMAND, Launcher


@pytest.fixture
def clusterrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher whose jobs are all gone after the test."""
    launcher = Launcher(tmp_path)

    yield launcher

    launcher.close()


@pytest.fixture
def impatient(clusterrun: Launcher) -> Launcher:
    """Return a launcher that, at its end, soon gives up output that nothing takes."""
    clusterrun.program = command_with(clusterrun.folder, node_workers, "SECONDS_TO_PRINT", 0.3)
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
