"""``clusterrun cancel ID``: ends a submitted job."""

from collections.abc import Mapping
from functools import partial

from clusterrun.cli.printing import print_text
from clusterrun.job.sources import CommandLine
from clusterrun.sources.submissions.queued_job import find_queued_job
from clusterrun.submitting.batch import cancel
from clusterrun.submitting.table import BY_NAME


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Ask the scheduler to end the job.

    Raises:
        UsageError: no such job, or the scheduler refuses.

    """
    job = find_queued_job(line, environ, f"{called} cancel")
    scheduler = BY_NAME[job.scheduler]
    return print_text(cancel(scheduler, job.job_id, partial(scheduler.ask, environ=environ)))
