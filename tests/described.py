"""Jobs described for tests: in the folder where the test stands, by an environment of its own."""

import os
import sys
from collections.abc import Mapping

import pytest

from launcher.errors import ExitCode, UsageError
from launcher.sources.process import ThisProcess
from launcher.sources.resolve import Resolved, resolve
from launcher.sources.said import Flags

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
        flags or {},
        words,
        {"PATH": SEARCH_PATH, **(environ or {})},
        process,
    )


def mistake(
    *words: str, flags: Flags | None = None, environ: Mapping[str, str] | None = None
) -> tuple[str, str]:
    """Return message and hint of the mistake, with exit code 2, that the description has."""
    with pytest.raises(UsageError) as caught:
        describe(*words, flags=flags, environ=environ)
    assert caught.value.exit_code == ExitCode.USAGE
    return caught.value.message, caught.value.hint
