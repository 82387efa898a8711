"""``clusterrun logs ID``: the state and the output of a submitted job."""

from collections.abc import Mapping
from functools import partial

from clusterrun.cli.following import follow
from clusterrun.sources.settings import CommandLine
from clusterrun.sources.submissions.queued_job import find_queued_job
from clusterrun.submitting.asking import ask
from clusterrun.submitting.batch import expect_known
from clusterrun.submitting.table import BY_NAME


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Show the job until it ends; return its exit code.

    Raises:
        UsageError: no such job, or no scheduler.

    """
    job = find_queued_job(line, environ, f"{called} logs")
    scheduler = BY_NAME[job.scheduler]
    expect_known(scheduler, job.job_id, partial(ask, environ=environ))
    return follow(scheduler, job.job_id, environ, with_output=True)
