"""Fixtures of the tests of jobs from Python."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.launched import MARK, Launcher, plain_environment, remaining_processes


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Launcher]:
    """Return a launcher that runs scripts with plain Python; check that they leave no processes."""
    launcher = Launcher(tmp_path, sys.executable)

    yield launcher

    launcher.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let the test itself call ``launch``; return the folder for temporary files, left empty."""
    for name in list(os.environ):
        if name not in plain_environment():
            monkeypatch.delenv(name)
    mark = f"here-{tmp_path}"
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    # The tests' own process has imported torch and more, which these ranks do not need.
    monkeypatch.setenv("CLUSTERRUN_START_METHOD", "spawn")
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))

    yield folder

    assert remaining_processes(mark, seconds=5.0, besides=os.getpid()) == []
    assert list(folder.iterdir()) == []
