"""Which tests scripts/check leaves to scripts/check --hosts."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_all_tests_in_the_folder_hosts_are_marked_so() -> None:
    """However they get their fixtures: without the tools of hosts, scripts/check must pass."""
    words = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    chosen = ["-m", "not hosts", "tests/hosts"]

    done = subprocess.run(
        [sys.executable, *words, *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "deselected" in done.stdout
