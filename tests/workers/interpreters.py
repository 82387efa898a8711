"""Other interpreters of this machine, which some tests want."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

OLDEST = "3.8"
"""The oldest Python that workers may run on."""


def oldest_python() -> str | None:
    """Return an interpreter of the oldest version, or None where there is none."""
    return next((str(python) for python in [*_of_pyenv(), *_on_path()] if _runs(python)), None)


def _on_path() -> Iterator[Path]:
    found = shutil.which(f"python{OLDEST}")
    if found:
        yield Path(found)


def _of_pyenv() -> Iterator[Path]:
    shims = shutil.which("pyenv")
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    roots += [Path(shims).resolve().parents[1]] if shims else []
    for root in roots:
        for version in sorted(root.glob(f"versions/{OLDEST}*")):
            yield version / "bin" / f"python{OLDEST}"


def _runs(python: Path) -> bool:
    # A shim of pyenv's is there for every version that is installed, and runs only the chosen ones.
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True, timeout=30, check=False)
    except OSError:
        return False
    return done.returncode == 0
