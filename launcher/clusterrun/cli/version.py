"""``clusterrun --version``: what a bug report needs."""

import sys
from importlib import metadata


def version_text() -> str:
    """Return clusterrun's version, and Python's and torch's, which workers use unless --python is set."""
    versions = [f"clusterrun {metadata.version('clusterrun')}", f"Python {sys.version.split()[0]}"]
    try:
        versions.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        versions.append("no torch")
    return ", ".join(versions)
