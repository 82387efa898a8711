"""``clusterrun stop [RUN]``: ends a running job on all its nodes."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.printing import print_json, print_text
from clusterrun.cli.run_selection import query_agent, select_run_to_end
from clusterrun.errors import ExitCode
from clusterrun.job.declarations import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.requests import JOINING, Description, StopJob
from clusterrun.policy.node import Phase


class Stop(Struct, frozen=True):
    """Options of ``clusterrun stop``."""

    now: Annotated[bool, Option("Kill the workers of all nodes, without a grace period")] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Send the request to one agent of the run, without waiting for the job to end.

    Raises:
        NoJobError: no run has an agent on this host, or the agent does not answer.
        UsageError: the run does not exist.

    """
    asked = line.read(Stop)
    job = select_run_to_end(line, environ, called, "stop")
    if job is None:
        return ExitCode.NO_JOB
    described = query_agent(job, StopJob(asked.now), Description)
    if line.read(Launcher).json:
        return print_json(described)
    if described.state == JOINING:
        return print_text(f"run {described.run_id} was asked to stop: it no longer waits for nodes")
    if described.state == Phase.LEAVING.value:
        return print_text(
            f"run {described.run_id} was asked to stop: processes that its ranks left behind are killed"
        )
    how = "are killed" if asked.now else "get SIGTERM, then the grace period of --shutdown-timeout"
    return print_text(f"run {described.run_id} was asked to stop: its workers {how}")
