"""What ``clusterrun submit`` writes, without a scheduler."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from tests.described import PROCESS
from tests.door import ThisProcess
from tests.submitting.door import BY_NAME, Submission, describe, find_command, text_of

SUBMITS = replace(PROCESS, python="/opt/python/bin/python3")
"""Its interpreter has no clusterrun beside it."""


def submission(
    *words: str, environ: Mapping[str, str] | None = None, process: ThisProcess = SUBMITS
) -> Submission:
    """Return what ``clusterrun submit WORDS`` describes; without ``--to``, for Slurm."""
    Path("train.py").touch()
    to = () if "--to" in words else ("--to", "slurm")
    _, line = find_command(["submit", *to, *words], "clusterrun")
    return describe(line, environ or {}, process)


def script(*words: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the script of ``clusterrun submit WORDS``."""
    job = submission(*words, environ=environ)
    return text_of(BY_NAME[job.scheduler.value], job)
