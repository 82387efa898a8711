"""What each host is sent: the command line of its agent, and the variables that it gets."""

import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterrun.domain.job import ENV_VARIABLE, JobSpec, NodeLauncher
from clusterrun.errors import UsageError
from clusterrun.sources.hosts.over_ssh import OverSsh
from clusterrun.sources.options.rows import joining, program, reaching, workers
from clusterrun.sources.resolve import Resolved
from clusterrun.sources.settings import TOKEN_VARIABLE, CommandLine, FlagValue
from clusterrun.ssh.forwarded_variables import forwarded
from clusterrun.ssh.frames import Kind, frame
from clusterrun.ssh.host_job import encode, host_job

SECONDS_TO_REPORT = 10.0
"""After its workers have ended, an agent cleans up and waits for the verdict."""

TOKEN_BYTES = 32


_REPLACED = {
    name
    for option in (
        *(reaching.LAUNCHER, reaching.SSH_OPTIONS),
        *(workers.HOSTS, workers.HOSTFILE, joining.TOKEN_FILE, program.ENV),
    )
    for name in option.names
}
"""Flags that agents get in another form, or not at all."""


def interpreters_of(job: JobSpec) -> list[str]:
    """Return the interpreters that may run the agents: this process's, else the workers'."""
    named = Path(job.python.value).is_absolute() and job.python.value != sys.executable
    return [sys.executable, *([job.python.value] if named else [])]


def messages(
    resolved: Resolved, over_ssh: OverSsh, line: CommandLine, environ: Mapping[str, str]
) -> Iterator[bytes]:
    """Yield the frame with the job for each host, in the order of their ranks.

    Raises:
        UsageError: the current folder is deleted.

    """
    job = resolved.job
    flags = {name: value for name, value in line.flags.items() if name not in _REPLACED}
    variables = {
        **forwarded(environ, resolved.unset),
        **_env(line, environ),
        # Command lines can be read by all users of a host; variables cannot.
        TOKEN_VARIABLE: job.token.value or secrets.token_hex(TOKEN_BYTES),
    }
    folder = _folder()
    for rank, host in enumerate(over_ssh.hosts):
        own: dict[str, FlagValue] = {
            # A job file may say ssh, and each agent reads it.
            reaching.LAUNCHER.name: NodeLauncher.NONE.value,
            workers.HOSTS.name: ",".join(over_ssh.hosts),
            workers.NODE_RANK.name: str(rank),
        }
        if host in over_ssh.slots:
            own[workers.NPROC_PER_NODE.name] = str(over_ssh.slots[host])
        message = host_job(
            CommandLine({**flags, **own}, line.words),
            folder,
            variables,
            heartbeat_timeout=job.heartbeat_timeout.value,
            grace=job.shutdown_timeout.value + job.suspend_grace.value + SECONDS_TO_REPORT,
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
    flags = line.flags.get(program.ENV.name, ())
    values = flags if isinstance(flags, tuple) else ()
    texts = [environ.get(ENV_VARIABLE, ""), *values]
    return {ENV_VARIABLE: "\n".join(filter(None, texts))} if values else {}
