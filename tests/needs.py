"""What a machine may lack: tests that need it are skipped there."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

ROOT = "root"
ADMINISTRATION = 1 << 21
READING_ALL = 1 << 2
"""CAP_SYS_ADMIN and CAP_DAC_READ_SEARCH of linux/capability.h: root lacks them in most containers."""

IN_WORDS = {ROOT: "root, with all capabilities"}


def need(*names: str) -> None:
    """Skip the running test, or the tests of a fixture that is being set up, if one is missing.

    ``root`` is the user, who may mount and read all; ``import debugpy`` is a module; every other name
    is a command on PATH. Where CI is set, which must have all of them, the test fails instead.
    """
    missing = [IN_WORDS.get(name, name) for name in names if not _is_available(name)]
    if missing and os.environ.get("CI"):
        pytest.fail(f"needs {', '.join(missing)}, which CI must have", pytrace=False)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def _is_available(name: str) -> bool:
    if name == ROOT:
        return os.geteuid() == 0 and _has_capabilities(ADMINISTRATION | READING_ALL)
    if name.startswith("import "):
        return importlib.util.find_spec(name.removeprefix("import ")) is not None
    return shutil.which(name) is not None


def _has_capabilities(wanted: int) -> bool:
    status = Path("/proc/self/status").read_text()
    _, _, rest = status.partition("\nCapEff:")
    return int(rest.split()[0], 16) & wanted == wanted
