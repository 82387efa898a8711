"""``clusterrun submit``: writes what a scheduler runs, and submits it."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from clusterrun.cli.printing import print_text, warn
from clusterrun.domain.submissions.submission import NodeCommand
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.sources import CommandLine
from clusterrun.sources.submissions.describe import Described, describe_submission
from clusterrun.sources.submissions.detection import expect_command
from clusterrun.submitting.batch import submit
from clusterrun.submitting.table import BY_NAME


def execute(line: CommandLine, environ: Mapping[str, str], _called: str) -> int:
    """Print, write or submit the job.

    Raises:
        UsageError: something is impossible, or the scheduler refuses the job.

    """
    described = describe_submission(line, environ, sys.executable)
    scheduler = BY_NAME[described.scheduler.value]
    job = scheduler.complete(described.submission, partial(scheduler.ask, environ=environ))
    text = scheduler.script(job)
    _expect_utf_8(job.command, text)
    if described.warning:
        warn([f"warning: {described.warning}"])
    if described.is_printed or described.save.value:
        return _show(text, described, is_secret=bool(job.command.env) or scheduler.has_secrets)
    expect_command(described.scheduler, environ.get("PATH", ""))
    job_id = submit(scheduler, job, text, lambda words, stdin: scheduler.ask(words, environ, stdin))
    print_text(job_id if described.is_quiet else _queued(scheduler.title, job_id, described))
    if not described.waits and not described.follows:
        return ExitCode.SUCCESS
    from clusterrun.cli.following import follow

    return follow(
        scheduler,
        job_id,
        environ,
        with_output=described.follows,
        is_quiet=described.is_quiet or not described.follows,
    )


def _expect_utf_8(command: NodeCommand, text: str) -> None:
    """Check that the script can be written: a file name or an argument may be any bytes."""
    options = (part for option in command.options for part in option)
    for each in (*command.words, *options, command.env, *text.splitlines()):
        try:
            each.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"the script of a job cannot have what is no UTF-8 text: {each!a}",
                "rename the file, or have the program read what it needs from a file",
            ) from None


def _queued(title: str, job_id: str, described: Described) -> str:
    queued = f"{title} has queued job {job_id} ({described.submission.job_name.value})"
    if described.waits or described.follows:
        return queued
    return (
        f"{queued}\n  to see it: clusterrun logs {job_id}\n  to end it: clusterrun cancel {job_id}"
    )


def _show(text: str, described: Described, *, is_secret: bool) -> int:
    if described.save.value:
        mode = 0o600 if is_secret else 0o666
        _write(Path(described.save.value), text, described.save.origin, mode)
    if described.is_printed:
        return print_text(text.rstrip("\n"))
    return print_text(f"{described.save.value} is written; nothing is submitted")


def _write(path: Path, text: str, origin: str, mode: int) -> None:
    """Write the whole file with this mode, as the umask allows it, or leave what was there."""
    unfinished = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        unfinished.replace(path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise UsageError(
            f"{origin}: {path} cannot be written: {error.strerror}",
            "give a path in a folder that you may write to",
        ) from None
