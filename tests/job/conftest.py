"""Every test here stands in an empty folder of its own."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a fresh folder the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script(folder: Path) -> Path:
    """Return ``train.py``, a script that reads no options."""
    path = folder / "train.py"
    path.write_text("print('trained')\n")
    return path
