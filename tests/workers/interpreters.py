"""Other Python versions on this machine, which some tests need."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from clusterrun.workers import fork_server

FORK_SERVER = f"""
import sys
package = type(sys)("fork_server")
package.__path__ = [{str(Path(str(fork_server.__file__)).parent)!r}]
sys.modules["fork_server"] = package
"""
"""Code after which any Python can import modules of the fork server, and nothing else of ours."""

OLDEST = "3.8"
"""The oldest Python that workers may run on."""


VERSIONS = (OLDEST, "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""All that workers may run on."""

OTHER_VERSIONS = [version for version in VERSIONS if version != "{}.{}".format(*sys.version_info)]
"""All but that of the tests."""


def oldest_python() -> str | None:
    """Return an interpreter of the oldest version, or None where there is none."""
    return python_of(OLDEST)


@functools.cache
def python_of(version: str) -> str | None:
    """Return an interpreter of this version, or None where there is none."""
    found = (python for python in [*_of_pyenv(version), *_on_path(version)] if _runs(python))
    return next(map(str, found), None)


def environment_without_pth(python: str, folder: Path) -> str:
    """Make an environment with the packages of ``python``, but none of its .pth files.

    Their code runs before any script, and may hide missing imports or prevent workers from being forked.

    Args:
        python: an interpreter, of a virtual environment or not.
        folder: where to make the environment.

    Returns:
        Its interpreter.

    """
    subprocess.run([python, "-m", "venv", "--without-pip", folder], timeout=100, check=True)
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = [
        Path(
            subprocess.run(
                [interpreter, "-c", ask], capture_output=True, text=True, timeout=30, check=True
            ).stdout.strip()
        )
        for interpreter in (python, str(folder / "bin/python"))
    ]
    for entry in site_packages[0].iterdir():
        if entry.suffix != ".pth" and not entry.name.startswith(("__editable__", "_distutils")):
            (site_packages[1] / entry.name).symlink_to(entry)
    return str(folder / "bin/python")


IMPORTED_BY_SCRIPTS = ("numpy", "torch")
"""Packages that scripts of tests import."""


@functools.cache
def lacking(python: str) -> list[str]:
    """Return those of ``IMPORTED_BY_SCRIPTS`` that an interpreter can't import."""
    names = [*IMPORTED_BY_SCRIPTS]
    find = f"import importlib.util as u; print(*[n for n in {names} if not u.find_spec(n)])"
    found = subprocess.run(
        [python, "-c", find], capture_output=True, text=True, timeout=30, check=True
    )
    return found.stdout.split()


def _on_path(version: str) -> Iterator[Path]:
    found = shutil.which(f"python{version}")
    if found:
        yield Path(found)


def _of_pyenv(version: str) -> Iterator[Path]:
    shims = shutil.which("pyenv")
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))]
    roots += [Path(shims).resolve().parents[1]] if shims else []
    # Another user's, after su, may be hidden.
    for root in (root for root in roots if os.access(root, os.R_OK)):
        for folder in sorted(root.glob(f"versions/{version}.*")):
            yield folder / "bin" / f"python{version}"


def _runs(python: Path) -> bool:
    # pyenv has a shim for every installed version, but runs only selected ones.
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True, timeout=30, check=False)
    except OSError:
        return False
    return done.returncode == 0
