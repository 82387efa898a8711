"""The scripts of ``clusterrun submit``, without Slurm."""

from collections.abc import Callable, Mapping
from pathlib import Path

from clusterrun.cli.commands import find_command
from clusterrun.clients.submit import Submission, describe, script_of
from clusterrun.job.this_process import CommandResult, ThisProcess
from msgspec.structs import replace

from tests.described import PROCESS

SUBMITTING_PROCESS = replace(PROCESS, python="/opt/python/bin/python3")
"""The folder of its interpreter has no clusterrun."""


def no_sinfo(_words: object) -> CommandResult:
    return CommandResult("", "sinfo: No such file or directory", None)


def submission(
    *words: str,
    environ: Mapping[str, str] | None = None,
    process: ThisProcess = SUBMITTING_PROCESS,
    ask: Callable[..., CommandResult] = no_sinfo,
) -> Submission:
    """Return the job of ``clusterrun submit WORDS``; ``ask`` answers for sinfo."""
    Path("train.py").touch()
    _, line = find_command(["submit", *words], "clusterrun")
    return describe(line, environ or {}, process, ask)


def script(*words: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the script of ``clusterrun submit WORDS``."""
    return script_of(submission(*words, environ=environ))
