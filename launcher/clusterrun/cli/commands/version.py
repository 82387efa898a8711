"""``clusterrun --version``: what a bug report needs."""

import sys
from collections.abc import Mapping
from importlib import metadata

from clusterrun.cli.printing import print_text
from clusterrun.sources.settings import CommandLine


def execute(_line: CommandLine, _environ: Mapping[str, str], _called: str) -> int:
    return print_text(version_text())


def version_text() -> str:
    """Return clusterrun's version, and Python's and torch's, which workers use unless --python is set."""
    versions = [f"clusterrun {metadata.version('clusterrun')}", f"Python {sys.version.split()[0]}"]
    try:
        versions.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        versions.append("no torch")
    return ", ".join(versions)
