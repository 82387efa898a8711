"""Typed answers as JSON, for programs."""

import json

import msgspec

from clusterrun.cli.printing import print_text
from clusterrun.errors import ExitCode


def print_json(value: object) -> ExitCode:
    """Print a struct, or what holds structs; in ASCII, which is the same JSON in every locale."""
    # msgspec's own encoder refuses names and variables of other bytes than UTF-8.
    return print_text(json.dumps(msgspec.to_builtins(value), indent=2))
