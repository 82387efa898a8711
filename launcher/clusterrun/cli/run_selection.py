"""Selects the run that a command is about: the one that is named, or the only one on this host."""

import os
import sys
from collections.abc import Mapping

from clusterrun.bounds import counted
from clusterrun.cli.printing import complain
from clusterrun.errors import NoJobError, UsageError, shell_line
from clusterrun.job.sources import CommandLine
from clusterrun.job.suggestions import did_you_mean
from clusterrun.machine.process_usage import why_unresponsive
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.control_client import (
    SECONDS_TO_DESCRIBE,
    FoundJobs,
    NoAnswer,
    RunningJob,
    SilentAgent,
    TimedOut,
    ask,
    find_jobs,
)
from clusterrun.network.requests import JOINING, AnswerT, Request, StopJob
from clusterrun.report.tables import duration
from clusterrun.user_sockets import socket_folders, unusable_socket_folders

NO_JOB = "you have no clusterrun job on this host"


def found_jobs(environ: Mapping[str, str], seconds: float = SECONDS_TO_DESCRIBE) -> FoundJobs:
    """Return all agents of this user on this host; all together have ``seconds`` to answer."""
    return find_jobs(socket_folders(environ), seconds)


def select_run(line: CommandLine, environ: Mapping[str, str], command: str) -> RunningJob:
    """Return an agent of the run that the command line names, or of the only run.

    Several agents on a host may belong to one run. One that waits to join, such as a spare, is chosen
    only if no other can be. ``command`` is for messages: "clusterrun status".

    Raises:
        NoJobError: no run has an agent on this host, or none answers.
        UsageError: the line names a run that does not exist, or no run and there are several.

    """
    found = found_jobs(environ)
    runs: dict[str, RunningJob] = {}
    for job in sorted(found.jobs, key=_is_joining):
        runs.setdefault(job.described.run_id, job)
    name = line.words[0] if line.words else ""
    if name in runs:
        return runs[name]
    only = [job for job in runs.values() if not _is_joining(job)] or [*runs.values()]
    if not name and len(only) == 1:
        return only[0]
    silent = [describe_silent(agent) for agent in found.silent]
    if not runs:
        if not silent:
            where = "run this on one of the job's nodes, as the user who started it"
            raise NoJobError(
                NO_JOB, "\n".join(filter(None, (unusable_socket_folders(environ), where)))
            )
        raise NoJobError("none of your jobs on this host answers", "\n".join(silent))
    what = f"you have no run called {name!r} on this host" if name else "which run?"
    if name and any(agent.version for agent in found.silent):
        raise NoJobError(
            f"{what}, unless a different version of clusterrun started it", "\n".join(silent)
        )
    lines = [f"  {command} {_described(job)}" for job in runs.values()]
    nearest = [did_you_mean(name, tuple(runs))] if name else []
    raise UsageError(what, "\n".join([*filter(None, nearest), "run one of:", *lines, *silent]))


def select_run_to_end(
    line: CommandLine, environ: Mapping[str, str], called: str, word: str
) -> RunningJob | None:
    """Return the run that command ``word`` ("stop") must end; None if the user declines.

    If the line does not name the run, the user is asked to confirm it, because it may not be the one
    that the user has in mind. Without a terminal, the line must name it.

    Raises:
        NoJobError: no run has an agent on this host, or none answers.
        UsageError: the line names a run that does not exist, or must name one.

    """
    job = select_run(line, environ, f"{called} {word}")
    if line.words:
        return job
    if not (os.isatty(0) and os.isatty(2)):
        raise UsageError(
            f"{called} {word} without a run id asks for confirmation, but there is no terminal",
            f"name the run:\n  {called} {word} {_described(job)}",
        )
    known = job.described
    size = [counted(known.nodes, "node")]
    if not _is_joining(job):
        size.append(counted(known.ranks, "rank"))
    about = ", ".join([known.program, *size, f"for {duration(known.running_for)}"])
    sys.stderr.write(f"{word} run {known.run_id} ({about})? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return job
    complain(f"clusterrun: left run {known.run_id} running")
    return None


def query_agent(job: RunningJob, request: Request, kind: type[AnswerT]) -> AnswerT:
    """Send a request to an agent and return the answer.

    Raises:
        NoJobError: the agent does not answer, or is waiting for nodes and can only be stopped.

    """
    if _is_joining(job) and not isinstance(request, StopJob):
        raise NoJobError(
            f"run {job.described.run_id} is still waiting on this host for other nodes, or for a"
            " free slot",
            "clusterrun ps shows for how long, and clusterrun stop ends it; if the job is already"
            " running on other nodes, run this command on one of them",
        )
    try:
        return ask(job, request, kind)
    except NoAnswer as error:
        known = job.described
        state = why_unresponsive(Tree(ROOT), known.pid) if isinstance(error, TimedOut) else ""
        raise NoJobError(
            f"run {known.run_id}, pid {known.pid}, does not answer: {error}",
            state or "it may just have ended",
        ) from None


def describe_silent(agent: SilentAgent) -> str:
    """Return a line about an agent that does not answer."""
    if agent.version:
        words = Tree(ROOT).text(f"proc/{agent.pid}/cmdline").split("\0")
        # Only the script; an argument may have the name, too.
        is_script = words[1:2] and words[1].rpartition("/")[2] == "clusterrun"
        started = words[:2] if is_script else [words[0], "-m", "clusterrun"]
        return (
            f"pid {agent.pid}: {agent.version}; use the clusterrun that started it:"
            f" {shell_line(started)}"
        )
    return why_unresponsive(Tree(ROOT), agent.pid) or f"pid {agent.pid} does not answer"


def _is_joining(job: RunningJob) -> bool:
    return job.described.state == JOINING


def _described(job: RunningJob) -> str:
    found = job.described
    nodes = f"node {found.node_rank} of {found.nodes}, " if found.nodes > 1 else ""
    return f"{shell_line([found.run_id])}    # {found.program}, {nodes}pid {found.pid}"
