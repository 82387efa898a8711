"""Fixtures of the tests of commands about running jobs."""

from pathlib import Path

import pytest


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """Return a variable that gives the test's jobs a private folder for sockets."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}
