"""``clusterrun submit`` and ``clusterrun cancel``, and ``clusterrun logs`` of a submitted job."""

import re
from collections.abc import Mapping

from clusterrun.cli.printing import complain, print_text, warn
from clusterrun.clients.submit.kubernetes import KUBERNETES
from clusterrun.clients.submit.node_command import NodeCommand
from clusterrun.clients.submit.others import FLUX, LSF, PBS
from clusterrun.clients.submit.request import (
    ROWS,
    Submit,
    expect_command,
    find_scheduler,
    scheduler_of_this_machine,
)
from clusterrun.clients.submit.scheduler import (
    Scheduler,
    asking,
    cancel,
    expect_known,
    submit,
    text_of,
)
from clusterrun.clients.submit.slurm import SLURM
from clusterrun.clients.submit.submission import describe
from clusterrun.errors import UsageError
from clusterrun.job.declaring import by_any_name
from clusterrun.job.job import ProgramKind, WorkerProgram
from clusterrun.job.options import OPTIONS
from clusterrun.job.program import misplaced_options
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process

BY_NAME = {each.name: each for each in (SLURM, LSF, FLUX, PBS, KUBERNETES)}

NUMBERED = {"slurm", "lsf", "pbs"}
"""Schedulers whose ids begin with a digit."""


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print or submit the job.

    The job's id alone goes to standard output, or with ``--follow`` what the job prints.

    Raises:
        UsageError: something is impossible, or the scheduler refuses the job.

    """
    if line.words:
        program = WorkerProgram(ProgramKind.SCRIPT, line.words[0], line.words[1:])
        warn(misplaced_options(program, by_any_name({**OPTIONS, **ROWS})))
    job, how = describe(line, environ, this_process(called)), line.read(Submit)
    scheduler = BY_NAME[job.scheduler.value]
    if how.follow and not how.print:
        _expect_followed(scheduler)
    ask = asking(environ)
    job = scheduler.complete(job, ask)
    text = text_of(scheduler, job)
    _expect_utf_8(job.command, text)
    if job.warning:
        warn([job.warning])
    if how.print:
        return print_text(text.rstrip("\n"))
    expect_command(job.scheduler, environ.get("PATH", ""))
    job_id = submit(scheduler, job, text, ask)
    complain(f"clusterrun: {scheduler.title} has queued job {job_id} ({job.job_name})")
    if how.follow:
        from clusterrun.clients.submit.follow import follow

        return follow(scheduler, job_id, environ)
    see = f"clusterrun logs {job_id}" if scheduler.states else f"{scheduler.see} {job_id}"
    complain(f"  to see it: {see}\n  to end it: clusterrun cancel {job_id}")
    return print_text(job_id)


def execute_cancel(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Ask the scheduler to end the job.

    Raises:
        UsageError: no such job, or the scheduler refuses.

    """
    scheduler, job_id = _queued_job(line, environ, f"{called} cancel")
    return print_text(cancel(scheduler, job_id, asking(environ)))


def execute_logs(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Show the job to its end, and return its exit code.

    Raises:
        UsageError: no such job, or no scheduler.

    """
    from clusterrun.clients.submit.follow import follow

    scheduler, job_id = _queued_job(line, environ, f"{called} logs")
    expect_known(scheduler, job_id, asking(environ))
    return follow(scheduler, job_id, environ)


def may_be_queued(word: str, environ: Mapping[str, str]) -> bool:
    """Return whether a scheduler of this machine may have a job of this id."""
    found = scheduler_of_this_machine(environ.get("PATH", ""))
    return found is not None and (found.value not in NUMBERED or word[:1].isdigit())


def _queued_job(line: CommandLine, environ: Mapping[str, str], typed: str) -> tuple[Scheduler, str]:
    """Return the job that ``line`` names; ``typed`` is the command, such as "clusterrun logs".

    Raises:
        UsageError: there is no scheduler, or no id.

    """
    if not line.words:
        raise UsageError("no job given", f"type its id:\n  {typed} ID")
    job_id = line.words[0]
    if not re.fullmatch(r"\w[\w.@/+\[\]-]*", job_id):
        raise UsageError(f"{job_id!r} is not the id of a job", f"type {typed} ID")
    path = environ.get("PATH", "")
    found = find_scheduler((line.options,), path)
    expect_command(found, path)
    return BY_NAME[found.value], job_id


def _expect_followed(scheduler: Scheduler) -> None:
    if scheduler.states is None:
        raise UsageError(
            f"--follow: clusterrun does not read what {scheduler.title} says of its jobs",
            f"leave it out, and type {scheduler.see} ID",
        )


def _expect_utf_8(command: NodeCommand, text: str) -> None:
    """Check that the script can be written: a file name or an argument may be any bytes."""
    options = (part for option in command.options for part in option)
    for each in (*command.words, *options, command.env, *text.splitlines()):
        try:
            each.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the script of a job can't have text that is not UTF-8: {each!a}",
                "rename the file, or have the program read what it needs from a file",
            ) from None
