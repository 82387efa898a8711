"""Jobs that tests describe by words, flags and an environment of their own."""

import os
import sys
from collections.abc import Mapping

import pytest
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.resolve import Resolved, resolve
from clusterrun.job.this_process import ThisProcess

from tests.command_lines import Flags, command_line

PROCESS = ThisProcess(host="node7", cpus=8, python=sys.executable, run_id="chosen")
SEARCH_PATH = os.environ.get("PATH", os.defpath)


def describe(
    *words: str,
    flags: Flags | None = None,
    environ: Mapping[str, str] | None = None,
    process: ThisProcess = PROCESS,
) -> Resolved:
    """Return what these words, flags and variables describe; PATH is always set."""
    return resolve(
        command_line(flags or {}, *words),
        {"PATH": SEARCH_PATH, **(environ or {})},
        process,
    )


def mistake(
    *words: str, flags: Flags | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Return message and hint of the mistake, with exit code 2, that the description has.

    Most mistakes have a transcript in tests/contract/command_line/mistakes, and no test beside it.
    """
    with pytest.raises(UsageError) as caught:
        describe(*words, flags=flags, environ=environ)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message, caught.value.hint
