"""Typed answers as JSON, for programs."""

import json

import msgspec

from clusterrun.cli.printing import print_text
from clusterrun.errors import ExitCode


def json_text(value: object) -> str:
    """Return a struct, or what holds structs, as JSON; in ASCII, which is the same in every locale."""
    # msgspec's own encoder refuses names and variables of other bytes than UTF-8.
    return json.dumps(msgspec.to_builtins(value), indent=2)


def print_json(value: object) -> ExitCode:
    return print_text(json_text(value))
