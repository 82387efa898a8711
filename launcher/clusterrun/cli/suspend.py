"""``clusterrun suspend [RUN]``: all ranks of a running job save at the same step, and the job ends."""

import time
from collections.abc import Mapping

from clusterrun.cli.printing import print_json, print_text
from clusterrun.cli.run_selection import query_agent, select_run_to_end
from clusterrun.errors import ExitCode, NoJobError, shell_line
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import NoAnswer, RunningJob, ask
from clusterrun.network.requests import Describe, Description, Suspend
from clusterrun.policy.queries import SECONDS, Answers, Query, Topic
from clusterrun.policy.suspension import SECONDS_TO_NAME

SECONDS_BETWEEN_TRIES = 0.25

SECONDS_TO_AGREE = 1.0
"""Ranks wait for a moment while they agree on a step."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Send the request to one agent of the run, and print which ranks take long to save.

    Raises:
        NoJobError: no run has an agent on this host, the agent does not answer, or ranks can't save.
        UsageError: the run does not exist.

    """
    job = select_run_to_end(line, environ, called, "suspend")
    if job is None:
        return ExitCode.NO_JOB
    described = query_agent(job, Suspend(), Description)
    if described.unsaved:
        raise NoJobError(
            f"run {described.run_id} can't be suspended and continues: {described.unsaved}",
            f"{called} stop {shell_line([described.run_id])} ends it, but nothing is saved; set"
            " TMPDIR to a folder that you can write to before you start it again",
        )
    if line.read(Launcher).json:
        return print_json(described)
    print_text(
        f"run {described.run_id} was asked to suspend: it ends once all of its ranks have called"
        " suspend.requested and saved"
    )
    late = _late_ranks(job)
    return print_text(late) if late else ExitCode.SUCCESS


def _late_ranks(job: RunningJob) -> str:
    """Wait until the job ends or its late ranks are known; return a text about these."""
    until = time.monotonic() + SECONDS_TO_NAME + SECONDS_TO_AGREE
    try:
        while time.monotonic() < until:
            time.sleep(SECONDS_BETWEEN_TRIES)
            ask(job, Describe(), Description)
        query = Query(1, Topic.RANKS, SECONDS[Topic.RANKS])
        return ask(job, query, Answers).end.suspension
    except NoAnswer:
        # Usually the job has ended.
        return ""
