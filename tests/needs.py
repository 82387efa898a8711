"""What a machine may lack: tests that need it are skipped there."""

import os
import shutil
import sysconfig
from pathlib import Path

import pytest


def need(*names: str) -> None:
    """Skip the running test, or the tests of a fixture that is being set up, if one is missing.

    ``root`` is the user; ``own sitecustomize`` is an interpreter without one of its own, which
    Debian's has; every other name is a command on PATH. Where CI is set, which must have all of
    them, the test fails instead.
    """
    missing = [name for name in names if not _is_available(name)]
    if missing and os.environ.get("CI"):
        pytest.fail(f"needs {', '.join(missing)}, which CI must have", pytrace=False)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def _is_available(name: str) -> bool:
    if name == "own sitecustomize":
        return not (Path(sysconfig.get_path("stdlib")) / "sitecustomize.py").exists()
    return os.geteuid() == 0 if name == "root" else shutil.which(name) is not None
