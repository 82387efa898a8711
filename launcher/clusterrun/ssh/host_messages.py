"""What each host is sent: the command line of its agent, and the variables that it gets."""

import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterrun.errors import UsageError
from clusterrun.job.declaring import rows_of
from clusterrun.job.job import Job
from clusterrun.job.options import NodeLauncher, Reaching
from clusterrun.job.over_ssh import OverSsh
from clusterrun.job.resolve import Resolved
from clusterrun.job.sources import ENV_VARIABLE, TOKEN_VARIABLE, CommandLine, typed
from clusterrun.ssh.forwarded_variables import forwarded
from clusterrun.ssh.frames import Kind, frame
from clusterrun.ssh.host_job import encode, host_job

SECONDS_TO_REPORT = 10.0
"""After its workers have ended, an agent cleans up and waits for the verdict."""

TOKEN_BYTES = 32


_REPLACED = {*rows_of(Reaching), "hosts", "hostfile", "token_file", "env"}
"""Options that agents get in another form, or not at all."""


def interpreters_of(job: Job) -> list[str]:
    """Return the interpreters that may run the agents: this process's, else the workers'."""
    named = Path(job.python).is_absolute() and job.python != sys.executable
    return [sys.executable, *([job.python] if named else [])]


def messages(
    resolved: Resolved, over_ssh: OverSsh, line: CommandLine, environ: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the frame with the job for each host, in the order of their ranks.

    Raises:
        UsageError: the current folder is deleted.

    """
    job = resolved.job
    kept = line.without(_REPLACED)
    variables = {
        **forwarded(environ, resolved.unset),
        **_env(line, environ),
        # Command lines can be read by all users of a host; variables cannot.
        TOKEN_VARIABLE: job.token or secrets.token_hex(TOKEN_BYTES),
    }
    folder = _folder()
    for rank, host in enumerate(over_ssh.hosts):
        own = typed(
            # A job file may say ssh, and each agent reads it.
            launcher=NodeLauncher.NONE.value,
            hosts=",".join(over_ssh.hosts),
            node_rank=str(rank),
        )
        if host in over_ssh.slots:
            own = {**own, **typed(nproc_per_node=str(over_ssh.slots[host]))}
        message = host_job(
            kept.over(own),
            folder,
            variables,
            heartbeat_timeout=job.failing.heartbeat_timeout,
            grace=job.failing.shutdown_timeout + job.suspending.suspend_grace + SECONDS_TO_REPORT,
        )
        yield frame(Kind.JOB, encode(message))


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError(
            "the current folder has been deleted, and the hosts have to enter it",
            "change to another one",
        ) from None


def _env(line: CommandLine, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that says what the flags ``--env`` do, which all users could read."""
    values = [text.value for text in line.options.get("env", ())]
    texts = [environ.get(ENV_VARIABLE, ""), *values]
    return {ENV_VARIABLE: "\n".join(filter(None, texts))} if values else {}
