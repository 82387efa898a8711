"""``clusterrun suspend [RUN]``: all ranks of a running job save at one step, and the job ends."""

from collections.abc import Mapping, Sequence

from clusterrun.cli.printing import print_text
from clusterrun.control.messages import Suspend
from clusterrun.control.running_jobs import RunningJob, ask, running_jobs
from clusterrun.errors import UsageError
from clusterrun.sources.settings import CommandLine
from clusterrun.user_sockets import socket_folder


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Ask one agent of the run; all nodes of it are suspended.

    Raises:
        UsageError: no such run has an agent on this host, or the line names none of several.

    """
    folder = socket_folder(environ)
    jobs = [] if folder is None else list(running_jobs(folder))
    job = _chosen(jobs, line.words, called)
    try:
        described = ask(job.path, Suspend())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"run {job.described.run_id}, pid {job.described.pid}, does not answer: {error}",
            "it may just have ended",
        ) from None
    return print_text(
        f"run {described.run_id} is asked to suspend: it ends once all of its ranks have saved"
    )


def _chosen(jobs: Sequence[RunningJob], words: Sequence[str], called: str) -> RunningJob:
    """Return an agent of the run that is meant; several agents of a host may be of one run."""
    runs = {job.described.run_id: job for job in reversed(jobs)}
    if not runs:
        raise UsageError(
            "no run of yours has an agent on this host",
            "type it on a node of the job, as the user who started it",
        )
    if not words and len(runs) == 1:
        return next(iter(runs.values()))
    if words and words[0] in runs:
        return runs[words[0]]
    what = f"no run of yours on this host is {words[0]!r}" if words else "which run?"
    lines = [f"{called} suspend {_described(job)}" for job in reversed(runs.values())]
    raise UsageError(what, "\n".join(["type one of:", *lines]))


def _described(job: RunningJob) -> str:
    found = job.described
    nodes = f"node {found.node_rank} of {found.nodes}, " if found.nodes > 1 else ""
    return f"{found.run_id}    # {found.program}, {nodes}pid {found.pid}"
