"""What command lines mean: values with origins, warnings, or an error.

A file in ``lines/`` has sessions:

    # Why the line means what follows.
    $ @node.1 NAME=VALUE clusterrun --nnodes 2 train.py
    nnodes: 2 (--nnodes)
    warning: ...

Lines that begin with ``>`` are the file job.yaml, and with ``NAME>`` another file:

    > services: {server: {command: a, nnodes: 0}}
    error: job.yaml:1 services.server.nnodes: '0' is not a number of nodes
      give a number from 1

The line is then ``clusterrun --config job.yaml train.py`` unless the session has one.

``@node.1`` stands for the variables under that heading in ``clusters/slurm_22_05.txt`` or
``clusters/platforms.txt``; a later word replaces variables of an earlier one. ``at-a-shell`` says that
the line is typed at an interactive shell. A session has the values that matter and all warnings, or an
error and its hint. Errors without a scheduler's environment have transcripts in
tests/contract/command_line/mistakes.
"""

import shlex
from collections.abc import Iterator
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from clusterrun.cli.splitting import split
from clusterrun.errors import UsageError
from clusterrun.job.job import Job
from clusterrun.job.options import OPTIONS
from clusterrun.job.resolve import Resolved, resolve
from msgspec.structs import replace

from tests.captured import CLUSTERS, captured
from tests.described import PROCESS, SEARCH_PATH
from tests.sessions import Session, sessions_of

TEXTS = sorted((Path(__file__).parent / "lines").glob("*.txt"))
AT_SHELL = "at-a-shell"
ADDRESSES = {
    "": ("127.0.0.1", "10.0.0.7", "fd77::7"),
    "seven": ("10.0.0.7",),
    "eight": ("10.0.0.8",),
}
"""The addresses of this host, node7, and of other names."""
FILES = ("slurm_22_05.txt", "platforms.txt")
WITH_FILE = "clusterrun --config job.yaml train.py"


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("session", sessions_of(*TEXTS, usual=WITH_FILE), ids=str)
def test_session(session: Session) -> None:
    """The current folder has train.py; nothing is known about the machine."""
    session.write_files()
    texts = ("warning: ", "error: ", "  ")
    names = [text.partition(": ")[0] for text in session.expected if not text.startswith(texts)]

    assert (*session_output(session.line, names),) == session.expected


def session_output(line: str, names: list[str]) -> Iterator[str]:
    """Yield what a session shows for a line: the values with these names, and all warnings, or the error."""
    words = shlex.split(line)
    at = next(at for at, word in enumerate(words) if word in ("clusterrun", "torchrun"))
    environ, at_shell = {"PATH": SEARCH_PATH}, AT_SHELL in words[:at]
    for word in (it for it in words[:at] if it != AT_SHELL):
        name, _, value = word.partition("=")
        environ |= variables_of(name[1:]) if name.startswith("@") else {name: value}
    process = replace(
        PROCESS,
        called=words[at],
        is_under_shell=lambda: at_shell,
        addresses=lambda name: ADDRESSES.get(name, ()),
    )
    try:
        resolved = resolve(split(words[at + 1 :], words[at]), environ, process)
    except UsageError as error:
        yield f"error: {error.message}"
        yield from (f"  {line}" for line in error.hint.splitlines())
        return
    yield from (f"{name}: {shown_value(resolved, name)}" for name in names)
    yield from (f"warning: {warning}" for warning in resolved.warnings)


def variables_of(heading: str) -> dict[str, str]:
    """Return the variables under a heading of one of ``FILES``."""
    (file,) = (file for file in FILES if f"\n# {heading}: " in (CLUSTERS / file).read_text())
    return captured(heading, file)


def shown_value(resolved: Resolved, name: str) -> str:
    """Return a value with its origin, if it has one; ``program.args`` is a value of a subject."""
    whole, _, part = name.partition(".")
    if name in Resolved.__struct_fields__:
        return plain(getattr(resolved, name))
    if not part:
        setting = resolved.job.setting(name)
        # Properties of a job have no origin.
        has_origin = name in OPTIONS or name in Job.__struct_fields__
        return f"{plain(setting.value)} ({setting.origin})" if has_origin else plain(setting.value)
    of = getattr(resolved, whole) if hasattr(resolved, whole) else resolved.job.setting(whole).value
    return plain(attrgetter(part)(of))


def plain(value: Any) -> str:
    """Return a value as typed; an empty text, or one with blanks at its ends, has quotes."""
    match value:
        case Enum():
            return str(value.value)
        case str() if value != value.strip() or not value:
            return repr(value)
    return str(value)
