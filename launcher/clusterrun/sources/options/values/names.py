"""Read names: of runs, roles, variables."""

from clusterrun.sources.options.values.unreadable import UnreadableError
from clusterrun.sources.other_launchers.nested_launches import WORKER_VARIABLES

LONGEST_RUN_ID = 200
"""Bytes: file systems allow 255 in a name, and folders are called by the run's name and more."""


LONGEST_ROLE = 255
"""Characters of a name that nodes tell each other."""


def run_id(text: str) -> str:
    """Read the name of a run, which also names its folder in the log directory."""
    if not text or text in {".", ".."} or "/" in text or not text.isprintable():
        raise UnreadableError(
            f"{text!r} cannot name a run, and the folder of its logs", "give a word without a /"
        )
    if len(text.encode()) > LONGEST_RUN_ID:
        raise UnreadableError(
            f"{text[:20]!r}... has {len(text.encode())} bytes, too many to name a folder by",
            f"give a name of at most {LONGEST_RUN_ID} bytes",
        )
    return text


def setting(text: str) -> dict[str, str]:
    """Read ``NAME=VALUE``, a variable for the workers: its value by its name."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UnreadableError(
            f"{text!r} has no = in it", "write NAME=VALUE, such as NCCL_DEBUG=INFO"
        )
    return {variable_name(name): value}


def variable_name(text: str) -> str:
    """Read the name of an environment variable that a job may set for its workers."""
    if not (text.isascii() and text.isidentifier()):
        raise UnreadableError(
            f"{text!r} is not the name of a variable",
            "give letters, digits and _, such as NCCL_DEBUG",
        )
    if text in WORKER_VARIABLES:
        own_flag = f"--{text.lower().replace('_', '-')}"
        raise UnreadableError(
            f"{text} is a variable that clusterrun itself gives to each worker",
            f"use {own_flag}" if text.startswith("MASTER_") else "leave it out",
        )
    return text


def role(text: str) -> str:
    """Read what the workers are called, ROLE_NAME."""
    if not text or not text.isprintable() or len(text) > LONGEST_ROLE:
        raise UnreadableError(
            f"{text[:LONGEST_ROLE]!r} cannot name a role", "give a word, such as trainer"
        )
    return text
