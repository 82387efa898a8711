r"""What lines mean: the values of the job with their origins, the warnings, or the mistake.

Each text in ``lines/`` has sessions, divided by empty lines:

    # Why the line means what follows.
    $ @node.1 NAME=VALUE clusterrun --nnodes 2 train.py
    nnodes: 2 (--nnodes)
    warning: ...

``@node.1`` stands for the variables of that heading in ``clusters/slurm_22_05.txt`` or
``clusters/platforms.txt``; of several, the last one that has a variable sets it. ``at-a-shell`` says that
the line is typed at an interactive shell. A session names the values that matter and all warnings, or has the message of an error and what to type. Mistakes without a
scheduler's environment have transcripts in tests/contract/command_line/mistakes.
"""

import re
import shlex
from collections.abc import Iterator
from enum import Enum
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

TEXTS = sorted((Path(__file__).parent / "lines").glob("*.txt"))
AT_SHELL = "at-a-shell"
FILES = ("slurm_22_05.txt", "platforms.txt")


def sessions() -> list[str]:
    """Return all sessions, without their comments."""
    texts = [re.sub(r"(?m)^#.*\n", "", path.read_text()) for path in TEXTS]
    return [session for text in texts for session in text.strip().split("\n\n")]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("session", sessions())
def test_a_line_means_this(session: str) -> None:
    """In the folder of train.py, on a node of which nothing is known."""
    line, *expected = session.removeprefix("$ ").splitlines()
    texts = ("warning: ", "error: ", "  ")
    names = [text.partition(": ")[0] for text in expected if not text.startswith(texts)]

    assert list(told(line, names)) == expected


def told(line: str, names: list[str]) -> Iterator[str]:
    """Yield what a session shows of a line, as far as it has these names."""
    words = shlex.split(line)
    at = next(at for at, word in enumerate(words) if word in ("clusterrun", "torchrun"))
    environ, at_shell = {"PATH": SEARCH_PATH}, AT_SHELL in words[:at]
    for word in (it for it in words[:at] if it != AT_SHELL):
        name, _, value = word.partition("=")
        environ |= under(name[1:]) if name.startswith("@") else {name: value}
    process = replace(PROCESS, called=words[at], is_under_shell=lambda: at_shell)
    try:
        resolved = resolve(split(words[at + 1 :], words[at]), environ, process)
    except UsageError as error:
        yield f"error: {error.message}"
        yield from (f"  {line}" for line in error.hint.splitlines())
        return
    yield from (f"{name}: {shown(resolved, name)}" for name in names)
    yield from (f"warning: {warning}" for warning in resolved.warnings)


def under(heading: str) -> dict[str, str]:
    """Return the variables under a heading, of whichever file has it."""
    (file,) = (file for file in FILES if f"\n# {heading}: " in (CLUSTERS / file).read_text())
    return captured(heading, file)


def shown(resolved: Resolved, name: str) -> str:
    """Return a value with its origin; of ``program.args``, one within a value, or of the result."""
    whole, _, part = name.partition(".")
    if not part:
        fact = resolved.job.setting(name)
        # What follows from several options has no origin.
        is_set = name in OPTIONS or name in Job.__struct_fields__
        return f"{plain(fact.value)} ({fact.origin})" if is_set else plain(fact.value)
    of = getattr(resolved, whole) if hasattr(resolved, whole) else resolved.job.setting(whole).value
    return plain(getattr(of, part))


def plain(value: Any) -> str:
    """Return a value as it is typed; of text the quotes show where it ends."""
    match value:
        case Enum():
            return str(value.value)
        case str() if value != value.strip() or not value:
            return repr(value)
    return str(value)
