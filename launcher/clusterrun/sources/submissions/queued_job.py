"""Which submitted job a command is about."""

import re
from collections.abc import Mapping

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.sources import CommandLine
from clusterrun.sources.submissions.detection import expect_command, find_scheduler


class QueuedJob(Struct, frozen=True):
    """A job, and the name of the scheduler that has it."""

    scheduler: str
    job_id: str


def find_queued_job(line: CommandLine, environ: Mapping[str, str], typed: str) -> QueuedJob:
    """Return the job that ``line`` names; ``typed`` is the command, such as "clusterrun logs".

    Raises:
        UsageError: there is no scheduler, or no id.

    """
    if not line.words:
        raise UsageError("which job?", f"type its id:\n  {typed} ID")
    job_id = line.words[0]
    if not re.fullmatch(r"\w[\w.@/\[\]-]*", job_id):
        raise UsageError(f"{job_id!r} is not the id of a job", f"type {typed} ID")
    path = environ.get("PATH", "")
    scheduler: Fact[str] = find_scheduler((line.options,), path)
    expect_command(scheduler, path)
    return QueuedJob(scheduler.value, job_id)
