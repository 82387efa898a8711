"""What all contract tests start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import COMMAND, Launcher


@pytest.fixture
def clusterrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a starter of jobs; all that it has started is gone after the test."""
    launcher = Launcher(tmp_path)

    yield launcher

    launcher.close()


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a starter of jobs by a link that is called ``torchrun``."""
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin" / "torchrun"
    link.symlink_to(COMMAND)
    launcher = Launcher(tmp_path, str(link))

    yield launcher

    launcher.close()
