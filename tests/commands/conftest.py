"""Fixtures of the tests of commands about running jobs."""

from pathlib import Path

import pytest


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return the variable that gives the jobs of the test a folder of their own."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}
