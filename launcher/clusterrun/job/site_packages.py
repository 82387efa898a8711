"""Which packages another Python environment has; nothing is imported or started."""

from collections.abc import Iterator
from pathlib import Path

from clusterrun.job.file_kinds import FileKind, kind_of, names_in

MIN_PYTHON_MINOR = 8
"""Workers run on Python 3.8 or newer."""

MAX_NAMES = 20_000
"""More entries of ``lib`` are not read; conda has all libraries of an environment there."""


def has_package(environment: str, name: str) -> bool:
    """Return whether an environment of venv or conda has a folder for the package.

    An editable install, a link to the sources, is not found.

    Args:
        environment: the folder of the environment.
        name: the folder of the package, such as ``torch``.

    """
    folders = _site_packages(environment)
    return any(kind_of(f"{each}/{name}/__init__.py") is FileKind.FILE for each in folders)


def _site_packages(environment: str) -> Iterator[str]:
    """Yield the site-packages folders of the environment, then those of its base Python."""
    # conda also has python3.1, a link to python3.10.
    names = names_in(f"{environment}/lib", MAX_NAMES, folders=True)
    versions = [name for name in names if _is_new_enough(name)]
    for version in versions:
        yield f"{environment}/lib/{version}/site-packages"
    if base := _base_prefix(environment):
        for version in (*versions, "python3"):
            # Debian's and Fedora's layouts, and the common one.
            for lib in ("lib", "lib64", "local/lib", "local/lib64"):
                yield f"{base}/{lib}/{version}/site-packages"
                yield f"{base}/{lib}/{version}/dist-packages"


def _is_new_enough(version: str) -> bool:
    minor = version.removeprefix("python3.")
    return minor != version and minor.isdecimal() and int(minor) >= MIN_PYTHON_MINOR


def _base_prefix(environment: str) -> Path | None:
    """Return the prefix of the base Python if the environment includes its packages.

    pyvenv.cfg says so (docs.python.org, "venv").
    """
    try:
        lines = Path(environment, "pyvenv.cfg").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    rows = (line.partition("=") for line in lines)
    settings = {key.strip().lower(): value.strip() for key, _, value in rows}
    if settings.get("include-system-site-packages", "").lower() != "true":
        return None
    return Path(settings.get("home", "")).parent
