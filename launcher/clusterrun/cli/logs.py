"""``clusterrun logs``: what a running job prints, or the state and output of a submitted one."""

from collections.abc import Mapping

from clusterrun.cli.chosen_run import found_jobs
from clusterrun.cli.commands import IS_QUEUED, LOGS_OF_QUEUED, named
from clusterrun.cli.output_of_ranks import Logs, print_output
from clusterrun.job.declaring import rows_of
from clusterrun.job.sources import CommandLine


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the last lines of a run with an agent here; show a submitted job until it ends.

    Raises:
        UsageError: no such job, or no scheduler.

    """
    if not _is_submitted(line, environ):
        return print_output(line, environ, called)
    code: int = named(LOGS_OF_QUEUED)(line, environ, called)
    return code


def _is_submitted(line: CommandLine, environ: Mapping[str, str]) -> bool:
    """Return whether the scheduler is to be asked: by --to, or for what is no run here."""
    if "to" in line.options:
        return True
    if not line.words or line.options.keys() & {*rows_of(Logs), "json"}:
        return False
    found = found_jobs(environ)
    if line.words[0] in {job.described.run_id for job in found.jobs}:
        return False
    if found.silent and not line.words[0][:1].isdigit():
        # It is no id of a scheduler's, and may be the run of an agent that is stopped.
        return False
    return bool(named(IS_QUEUED)(line.words[0], environ))
