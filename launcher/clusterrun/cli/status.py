"""``clusterrun status [RUN]``: all ranks of all nodes of a running job."""

import time
from collections.abc import Mapping

from clusterrun.cli.printing import columns, print_json, print_text
from clusterrun.cli.run_selection import chosen_run, query_nodes
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import NoAnswer, RunningJob, ask
from clusterrun.policy.queries import SECONDS, Answers, Query, Topic
from clusterrun.report.ranks import JobStatus, status_text

QUERY = Query(1, Topic.RANKS, SECONDS[Topic.RANKS])

SECONDS_BETWEEN_ANSWERS = 0.5
"""CPU use is measured between two answers."""

SECONDS_FOR_THE_FIRST = 0.5
"""If the first takes longer, there is no second: a user waits no longer than two seconds."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print how all ranks are, and name the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or it does not answer.
        UsageError: the line names no run that is there.

    """
    job = chosen_run(line, environ, f"{called} status")
    began = time.monotonic()
    first = query_nodes(job, QUERY)
    middle = time.monotonic()
    second = _again(job) if middle - began < SECONDS_FOR_THE_FIRST else None
    status = JobStatus.of(job.described, first, second, time.monotonic() - middle)
    if line.read(Launcher).json:
        return print_json(status)
    return print_text(status_text(status, columns(environ)))


def _again(job: RunningJob) -> Answers | None:
    time.sleep(SECONDS_BETWEEN_ANSWERS)
    try:
        return ask(job, QUERY, Answers)
    except NoAnswer:
        # The job has just ended.
        return None
