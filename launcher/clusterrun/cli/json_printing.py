"""Typed answers as JSON, for programs."""

import msgspec

from clusterrun.cli.printing import print_text
from clusterrun.errors import ExitCode


def print_json(value: object) -> ExitCode:
    """Print a struct, or a sequence of them."""
    return print_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
