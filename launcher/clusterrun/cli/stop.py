"""``clusterrun stop [RUN]``: ends a running job on all nodes; ``--warm``: the warm fork servers."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.chosen_run import answer_of, chosen_run
from clusterrun.cli.printing import print_json, print_text
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.requests import JOINING, Description, StopJob
from clusterrun.policy.node import Phase
from clusterrun.workers.warm import end_warm_servers


class _Ended(Struct, frozen=True):
    """What ``clusterrun stop --warm --json`` prints."""

    ended: int


class Stop(Struct, frozen=True):
    """Its own options."""

    now: Annotated[bool, Option("Kill the workers of all nodes, without a grace period")] = False
    warm: Annotated[bool, Option("End what --keep-warm has left, as soon as it has no job")] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Ask one agent of the run, and wait for no end; or end the warm fork servers.

    Raises:
        UsageError: no such run has an agent on this host, it does not answer, or the line names
            both a run and --warm.

    """
    asked = line.read(Stop)
    if asked.warm:
        return _end_warm(line, environ, called)
    warm = f"or type {called} stop --warm to end fork servers that stay warm"
    job = chosen_run(line, environ, f"{called} stop", "" if line.words else warm)
    described = answer_of(job, StopJob(asked.now), Description)
    if line.read(Launcher).json:
        return print_json(described)
    if described.state == JOINING:
        return print_text(f"run {described.run_id} is asked to stop: it waits for no more nodes")
    if described.state == Phase.LEAVING.value:
        return print_text(
            f"run {described.run_id} is asked to stop: what its ranks have left is killed"
        )
    how = "are killed" if asked.now else "get SIGTERM, then the grace period of --shutdown-timeout"
    return print_text(f"run {described.run_id} is asked to stop: its workers {how}")


def _end_warm(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    if line.words or line.read(Stop).now:
        typed = line.words[0] if line.words else "--now"
        raise UsageError(
            f"clusterrun stop: --warm ends what no run uses, and {typed} is about a run",
            f"type {called} stop --warm, or {called} stop [RUN]",
        )
    count = end_warm_servers(environ)
    if line.read(Launcher).json:
        return print_json(_Ended(count))
    return print_text(f"ended {count} warm fork server{'' if count == 1 else 's'}")
