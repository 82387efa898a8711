"""``clusterrun status [RUN]``: the ranks of a running job, on all its nodes."""

import time
from collections.abc import Mapping

from clusterrun.cli.printing import columns, print_json, print_text
from clusterrun.cli.run_selection import query_agent, select_run
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import NoAnswer, RunningJob, ask
from clusterrun.policy.queries import SECONDS, Answers, Query, Topic
from clusterrun.report.ranks import JobStatus, status_text

QUERY = Query(1, Topic.RANKS, SECONDS[Topic.RANKS])

SECONDS_BETWEEN_ANSWERS = 0.5
"""CPU use is measured over this time."""

MAX_SECONDS_OF_FIRST = 0.5
"""If the first answer takes longer, no second is requested, so that a user waits at most two seconds."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the state of all ranks, and list the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or the agent does not answer.
        UsageError: the run does not exist.

    """
    job = select_run(line, environ, f"{called} status")
    began = time.monotonic()
    first = query_agent(job, QUERY, Answers)
    middle = time.monotonic()
    second = _again(job) if middle - began < MAX_SECONDS_OF_FIRST else None
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
