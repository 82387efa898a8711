"""The command as it is typed, run in the tests' own process: a start of Python costs 0.2 s of CPU."""

import io
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from clusterrun.cli.main import run_command_line
from clusterrun.workers.fork_server.kernel import PR_SET_CHILD_SUBREAPER, prctl

QUOTED = re.compile("'[^']*'")
NEEDS_A_SHELL = re.compile("[$`|&;<>()]")


class Typed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def typed(
    words: Sequence[str], environ: Mapping[str, str], folder: Path, called: str = "clusterrun"
) -> Typed:
    """Run the command ``called`` with these words in ``folder``.

    It must start no worker: its handlers of signals would be those of the tests' process.
    """
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = run_command_line(words, environ, called)
    # A launch that has begun takes its orphans; of later tests, nobody would reap them.
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    return Typed(code, out.getvalue(), err.getvalue())


def words_without_a_shell(line: str) -> tuple[dict[str, str], list[str]] | None:
    """Return the variables and the words after ``clusterrun`` of a line; None if it needs a shell."""
    if NEEDS_A_SHELL.search(QUOTED.sub("", line)):
        return None
    words = shlex.split(line)
    at = words.index("clusterrun")
    return dict(word.split("=", 1) for word in words[:at]), words[at + 1 :]
