"""Read names: of runs, roles, variables."""

from clusterrun.errors import UsageError
from clusterrun.sources.other_launchers.nested_launches import WORKER_VARIABLES

LONGEST_RUN_ID = 200
"""Bytes: file systems allow 255 in a name, and a folder's name has the run id and more."""


LONGEST_ROLE = 255
"""Characters: nodes send each other the name."""


def run_id(text: str) -> str:
    """Read the name of a run, which is also part of the name of its log folder."""
    if not text or text in {".", ".."} or "/" in text or not text.isprintable():
        raise UsageError(
            f"{text!r} cannot be a run id, which also names a folder", "give a word without a /"
        )
    if len(text.encode()) > LONGEST_RUN_ID:
        raise UsageError(
            f"{text[:20]!r}... has {len(text.encode())} bytes, too many for the name of a folder",
            f"give a name of at most {LONGEST_RUN_ID} bytes",
        )
    return text


def setting(text: str) -> dict[str, str]:
    """Read ``NAME=VALUE``, a variable for the workers, as a mapping."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} has no = in it", "write NAME=VALUE, such as NCCL_DEBUG=INFO")
    return {variable_name(name): value}


def variable_name(text: str) -> str:
    """Read the name of an environment variable that a job may set for its workers."""
    if not (text.isascii() and text.isidentifier()):
        raise UsageError(
            f"{text!r} is not the name of a variable",
            "give letters, digits and _, such as NCCL_DEBUG",
        )
    if text in WORKER_VARIABLES:
        own_flag = f"--{text.lower().replace('_', '-')}"
        raise UsageError(
            f"{text} is a variable that clusterrun sets for each worker",
            f"use {own_flag}" if text.startswith("MASTER_") else "leave it out",
        )
    return text


def role(text: str) -> str:
    if not text or not text.isprintable() or len(text) > LONGEST_ROLE:
        raise UsageError(
            f"{text[:LONGEST_ROLE]!r} cannot name a role", "give a word, such as trainer"
        )
    return text
