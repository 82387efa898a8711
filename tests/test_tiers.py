"""How pytest runs these tests: which of them scripts/check leaves out, and with which plugins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WARNS = """
import warnings

def pytest_configure(config):
    warnings.warn("as pytest-benchmark beside xdist")
"""


def collect(*words: str, plugins: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Return how pytest collects tests of ours, with other installed ``plugins``."""
    added = {} if plugins is None else {"PYTHONPATH": str(plugins)}
    options = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, *options, *words],
        cwd=ROOT,
        env={**os.environ, **added},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_all_tests_in_the_folder_hosts_are_marked_so() -> None:
    """However they get their fixtures: scripts/check must pass without the tools that they need."""
    done = collect("-m", "not hosts", "tests/hosts")

    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "deselected" in done.stdout


def test_a_plugin_that_happens_to_be_installed_is_not_loaded(tmp_path: Path) -> None:
    """What it does is not for these tests; a warning of it would end pytest."""
    (tmp_path / "warns.py").write_text(WARNS)
    (tmp_path / "warns-1.dist-info").mkdir()
    (tmp_path / "warns-1.dist-info/METADATA").write_text("Name: warns\nVersion: 1\n")
    (tmp_path / "warns-1.dist-info/entry_points.txt").write_text("[pytest11]\nwarns = warns\n")

    done = collect("tests/test_bounds.py", plugins=tmp_path)

    assert done.returncode == 0, done.stderr
