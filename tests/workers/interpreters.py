"""Other interpreters of this machine, which some tests want."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

OLDEST = "3.8"
"""The oldest Python that workers may run on."""


VERSIONS = (OLDEST, "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""Those that workers may run on."""


def oldest_python() -> str | None:
    """Return an interpreter of the oldest version, or None where there is none."""
    return python_of(OLDEST)


def python_of(version: str) -> str | None:
    """Return an interpreter of this version, or None where there is none."""
    found = (python for python in [*_of_pyenv(version), *_on_path(version)] if _runs(python))
    return next(map(str, found), None)


def _on_path(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)


def _of_pyenv(version: str) -> Iterator[Path]:
    shims = shutil.which("pyenv")
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    roots += [Path(shims).resolve().parents[1]] if shims else []
    for root in roots:
        for folder in sorted(root.glob(f"versions/{version}.*")):
            yield folder / "bin" / f"python{version}"


def _runs(python: Path) -> bool:
    # A shim of pyenv's is there for every version that is installed, and runs only the chosen ones.
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True, timeout=30, check=False)
    except OSError:
        return False
    return done.returncode == 0
