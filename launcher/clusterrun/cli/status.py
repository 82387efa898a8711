"""``clusterrun status [RUN]``: all ranks of all nodes of a running job."""

import time
from collections.abc import Mapping

from clusterrun.cli.chosen_run import answer_of, chosen_run
from clusterrun.cli.printing import columns, print_json, print_text
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import NoAnswer, RunningJob, ask
from clusterrun.policy.looks import JobLook, LookAtRanks
from clusterrun.policy.messages import Ask
from clusterrun.report.ranks import JobStatus, status_text

SECONDS_BETWEEN_LOOKS = 0.5
"""CPU use is measured between two looks."""

SECONDS_FOR_ONE_LOOK = 0.5
"""If the first takes longer, there is no second: a user waits no longer than two seconds."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print how all ranks are, and name the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or it does not answer.
        UsageError: the line names no run that is there.

    """
    job = chosen_run(line, environ, f"{called} status")
    began = time.monotonic()
    first = answer_of(job, Ask(1, LookAtRanks()), JobLook)
    middle = time.monotonic()
    second = _again(job) if middle - began < SECONDS_FOR_ONE_LOOK else None
    status = JobStatus.of(job.described, first, second, time.monotonic() - middle)
    if line.read(Launcher).json:
        return print_json(status)
    return print_text(status_text(status, columns(environ)))


def _again(job: RunningJob) -> JobLook | None:
    time.sleep(SECONDS_BETWEEN_LOOKS)
    try:
        return ask(job, Ask(1, LookAtRanks()), JobLook)
    except NoAnswer:
        # The job has just ended.
        return None
