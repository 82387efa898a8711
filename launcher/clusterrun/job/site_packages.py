"""Which packages another environment has, by the folders in it: nothing is imported or started."""

from collections.abc import Iterator
from pathlib import Path

from clusterrun.job.file_kinds import FileKind, kind_of, names_in

OLDEST = 8
"""Workers run on Python 3.8 or newer."""

MAX_NAMES = 20_000
"""In ``lib``, where conda has all libraries of an environment; the order of names is not known."""


def has_package(environment: str, name: str) -> bool:
    """Return whether a virtual environment or one of conda has the package, by its folder.

    One that is installed by a link to its sources is not found.

    Args:
        environment: its folder.
        name: of a package that is imported from a folder of this name: ``torch``.

    """
    folders = _site_packages(environment)
    return any(kind_of(f"{each}/{name}/__init__.py") is FileKind.FILE for each in folders)


def _site_packages(environment: str) -> Iterator[str]:
    """Yield the folders of packages: the environment's own, then those of the Python beneath it."""
    # conda also has python3.1, a link to python3.10.
    names = names_in(f"{environment}/lib", MAX_NAMES, folders=True)
    versions = [name for name in names if _is_new_enough(name)]
    for version in versions:
        yield f"{environment}/lib/{version}/site-packages"
    if base := _python_beneath(environment):
        for version in (*versions, "python3"):
            # Debian's and Fedora's layouts, and the common one.
            for lib in ("lib", "lib64", "local/lib", "local/lib64"):
                yield f"{base}/{lib}/{version}/site-packages"
                yield f"{base}/{lib}/{version}/dist-packages"


def _is_new_enough(version: str) -> bool:
    minor = version.removeprefix("python3.")
    return minor != version and minor.isdecimal() and int(minor) >= OLDEST


def _python_beneath(environment: str) -> str:
    """Return where the Python beneath a virtual environment is, if its packages are seen; or "".

    By pyvenv.cfg (docs.python.org, "venv").
    """
    try:
        lines = Path(environment, "pyvenv.cfg").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    rows = (line.partition("=") for line in lines)
    settings = {key.strip().lower(): value.strip() for key, _, value in rows}
    if settings.get("include-system-site-packages", "").lower() != "true":
        return ""
    return str(Path(settings.get("home", "")).parent)
