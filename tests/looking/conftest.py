"""Fixtures of the tests of suspension."""

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
