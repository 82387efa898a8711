"""What a host gets: ssh's command line, the login shell's command, and the job with its variables."""

import json
import os
import secrets
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from clusterrun.errors import UsageError
from clusterrun.job.clusters.detection import CLUSTERS
from clusterrun.job.declarations import rows_of
from clusterrun.job.file_kinds import FOLDER_DELETED
from clusterrun.job.job import Job
from clusterrun.job.options import OPTIONS, NodeLauncher, Ssh
from clusterrun.job.resolve import Resolved
from clusterrun.job.sources import (
    ENV_VARIABLE,
    PREFIX,
    TOKEN_VARIABLE,
    TORCHRUN_PREFIX,
    CommandLine,
    typed,
)
from clusterrun.job.ssh_targets import SshTargets

# The command that a login shell runs, and what is printed before the agent begins.

SHELL_READY = b"clusterrun-reached"
"""Printed on a line after the output of the login shell's startup files."""

NO_INTERPRETER = b"clusterrun-no-interpreter"
"""Printed on a line if the host has none of the interpreters."""

# The user's login shell, which may be sh, fish or csh, parses this command. So it is the same for every
# job, and uses only syntax common to all of them. Everything else goes through standard input: ``read``
# of sh takes one byte at a time, and leaves the rest to the interpreter.
COMMAND = (
    "exec /bin/sh -c '"
    f'echo; echo "{SHELL_READY.decode()}"; '
    'python=; while IFS= read -r path && test -n "$path"; do '
    'test -z "$python" && test -x "$path" && python=$path; done; '
    f'test -n "$python" && exec "$python" -P -u -m clusterrun.clients.ssh.bootstrap; '
    f'echo "{NO_INTERPRETER.decode()}"; exit 127'
    "'"
)

_ALWAYS = (
    # The first value that ssh gets counts, so ssh_config can't change these.
    *("-T", "-o", "BatchMode=yes"),  # no terminal, no questions
    *("-o", "RemoteCommand=none"),
    # As scp does, because only one of several connections could forward a port.
    *("-o", "ClearAllForwardings=yes"),
)

SERVER_ALIVE_COUNT = 3
"""Unanswered keepalive messages after which ssh exits (ssh_config(5))."""


def ssh_command(ssh: str, host: str, options: Sequence[str], timeout: float) -> list[str]:
    """Return the words that run our command on ``host``.

    Args:
        ssh: the path of the program.
        host: a name or an address, as ssh_config may know it.
        options: the user's, which do not override ours. Host keys are checked as ssh_config says.
        timeout: seconds after which a host that does not answer is lost.

    """
    alive = (
        *("-o", f"ServerAliveInterval={max(1, round(timeout / SERVER_ALIVE_COUNT))}"),
        *("-o", f"ServerAliveCountMax={SERVER_ALIVE_COUNT}"),
    )
    return [ssh, *_ALWAYS, *alive, *options, "--", host, COMMAND]


def interpreters_of(job: Job) -> list[str]:
    """Return paths of interpreters that may run the agents: this process's, then ``--python``'s."""
    python = job.program.python
    named = job.given.python and Path(python).is_absolute() and python != sys.executable
    return [sys.executable, *([python] if named else [])]


def interpreter_lines(paths: Iterable[str]) -> bytes:
    """Return the lines that ``COMMAND`` reads: it executes the first one that the host has."""
    return b"".join(os.fsencode(path) + b"\n" for path in (*paths, ""))


class Stage(Enum):
    """How far a connection has come."""

    CONNECTING = "connecting"
    SHELL = "shell"
    """The login shell runs our command, which looks for an interpreter."""
    NO_INTERPRETER = "no interpreter"
    AGENT = "agent"
    """The agent runs."""


# The job.

TOKEN_BYTES = 32

_CLIENT_OPTIONS = {*rows_of(Ssh), "hosts", "hostfile", "token_file"}
"""Options that the client evaluates for all hosts."""

_LOCAL_VARIABLES = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "HOST", "HOSTNAME", "HOSTTYPE"),
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "TERMINFO", "COLUMNS", "LINES", "WINDOWID", "TTY"),
        *("DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "STY", "TMUX"),
        *("TMUX_PANE", "TMPDIR", "TMP", "TEMP", "KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
"""Variables that describe this host or this session."""

_LOCAL_PREFIXES = (
    *("SSH_", "XDG_", "GPG_", "VSCODE_"),
    # A scheduler's variables are about this process, not about an agent started by ssh.
    *(beginning for cluster in CLUSTERS for beginning in cluster.private_prefixes),
)

_CLIENT_VARIABLES = {
    f"{prefix}{name.upper()}"
    for prefix in (PREFIX, TORCHRUN_PREFIX)
    for option in (*_CLIENT_OPTIONS, "node_rank")
    for name in OPTIONS[option].names
}


def forwarded_variables(environ: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    """Return the variables of ``environ`` for the hosts, without those in ``unset``."""
    not_for_hosts = {*_LOCAL_VARIABLES, *_CLIENT_VARIABLES, *unset}
    return {
        name: value
        for name, value in environ.items()
        if name not in not_for_hosts and not name.startswith(_LOCAL_PREFIXES)
    }


class HostCommand(NamedTuple):
    """The command that bootstrap runs on a host."""

    argv: list[str]
    """The arguments of clusterrun."""
    folder: str
    variables: Mapping[str, str]
    """Variables to set in the host's environment."""

    def request(self, marker: str) -> bytes:
        """Return what bootstrap reads; ``marker`` begins lines for this process in the host's output."""
        body = json.dumps({**self._asdict(), "version": version("clusterrun")}).encode()
        return b"%b %d\n%b" % (marker.encode(), len(body), body)


def host_commands(
    resolved: Resolved, over_ssh: SshTargets, line: CommandLine, environ: Mapping[str, str]
) -> Iterator[HostCommand]:
    """Yield the command of each host, by rank.

    Raises:
        UsageError: the current folder is deleted.

    """
    job = resolved.job
    kept = line.without({*_CLIENT_OPTIONS, "env"})
    variables = {
        **forwarded_variables(environ, resolved.unset),
        **_env_variable(line, environ),
        # All users of a host can read command lines, but not variables.
        TOKEN_VARIABLE: job.token or secrets.token_hex(TOKEN_BYTES),
    }
    folder = _current_folder()
    for rank, host in enumerate(over_ssh.hosts):
        own = typed(
            # Each agent reads the job file, which may say ssh.
            launcher=NodeLauncher.NONE.value,
            hosts=",".join(over_ssh.hosts),
            node_rank=str(rank),
        )
        if host in over_ssh.slots:
            own = {**own, **typed(nproc_per_node=str(over_ssh.slots[host]))}
        yield HostCommand(kept.with_options(own).argv(), folder, variables)


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError(
            f"{FOLDER_DELETED}, but the hosts have to enter it",
            "change to another one",
        ) from None


def _env_variable(line: CommandLine, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a variable in place of ``--env`` flags, because all users can read command lines."""
    values = [text.value for text in line.options.get("env", ())]
    texts = [environ.get(ENV_VARIABLE, ""), *values]
    return {ENV_VARIABLE: "\n".join(filter(None, texts))} if values else {}
