"""What all contract tests start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import Launcher


@pytest.fixture
def clusterrun(tmp_path: Path) -> Iterator[Launcher]:
    """Return a starter of jobs; all that it has started is gone after the test."""
    launcher = Launcher(tmp_path)

    yield launcher

    launcher.close()
