"""What reaches a host: ssh's command line, the login shell's command, the job's call and variables."""

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

REACHED = b"clusterrun-reached"
"""A line of this alone: all before it was printed by the login shell's own files."""

NO_INTERPRETER = b"clusterrun-no-interpreter"
"""A line: none of the interpreters is on the host."""

# The user's login shell reads this first, be it sh, fish or csh: so it is the same for every job, and
# has only what is written alike in all of them. All else goes through standard input: sh's own read
# takes one byte at a time, and leaves the rest to the interpreter.
COMMAND = (
    "exec /bin/sh -c '"
    f'echo; echo "{REACHED.decode()}"; '
    'python=; while IFS= read -r path && test -n "$path"; do '
    'test -z "$python" && test -x "$path" && python=$path; done; '
    f'test -n "$python" && exec "$python" -P -u -m clusterrun.clients.ssh.bootstrap; '
    f'echo "{NO_INTERPRETER.decode()}"; exit 127'
    "'"
)

_ALWAYS = (
    # The first value that ssh gets counts: no file of the user's changes these.
    *("-T", "-o", "BatchMode=yes"),  # no terminal, no question
    *("-o", "RemoteCommand=none"),
    # As scp does: a port that ssh_config forwards is taken by the first of several connections.
    *("-o", "ClearAllForwardings=yes"),
)

SERVER_ALIVE_COUNT = 3
"""That ssh asks a silent host for, before it ends with "Timeout, server not responding"."""


def ssh_command(ssh: str, host: str, options: Sequence[str], silence: float) -> list[str]:
    """Return the words that run our command on ``host``.

    Args:
        ssh: the path of the program.
        host: a name or an address, as ssh_config may know it.
        options: the user's; they do not replace ours. Host keys are checked as ssh_config says.
        silence: seconds after which a host that does not answer is lost.

    """
    alive = (
        *("-o", f"ServerAliveInterval={max(1, round(silence / SERVER_ALIVE_COUNT))}"),
        *("-o", f"ServerAliveCountMax={SERVER_ALIVE_COUNT}"),
    )
    return [ssh, *_ALWAYS, *alive, *options, "--", host, COMMAND]


def interpreters_of(job: Job) -> list[str]:
    """Return the interpreters that may run the agents: this process's, else that of ``--python``."""
    python = job.program.python
    named = job.given.python and Path(python).is_absolute() and python != sys.executable
    return [sys.executable, *([python] if named else [])]


def interpreter_lines(paths: Iterable[str]) -> bytes:
    """Return the lines that ``COMMAND`` reads: it executes the first one that the host has."""
    return b"".join(os.fsencode(path) + b"\n" for path in (*paths, ""))


class Reached(Enum):
    """What runs at the other end of a connection."""

    NOTHING = "nothing"
    """Nothing of ours has run."""
    SHELL = "shell"
    """Our command runs, and has no interpreter yet."""
    NO_INTERPRETER = "no interpreter"
    AGENT = "agent"
    """What it prints follows."""


# The job, as each host gets it.

TOKEN_BYTES = 32

_LISTING = {*rows_of(Ssh), "hosts", "hostfile", "token_file"}
"""Options that the client reads for all hosts."""

_OWN = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "USERNAME", "SHELL", "MAIL", "HOST", "HOSTNAME", "HOSTTYPE"),
        *("PWD", "OLDPWD", "SHLVL", "_", "TERM", "TERMINFO", "COLUMNS", "LINES", "WINDOWID", "TTY"),
        *("DISPLAY", "XAUTHORITY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "STY", "TMUX"),
        *("TMUX_PANE", "TMPDIR", "TMP", "TEMP", "KRB5CCNAME", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
"""Variables that describe this host or this session."""

_OWN_PREFIXES = (
    *("SSH_", "XDG_", "GPG_", "VSCODE_"),
    # A scheduler's: its job is this process's, not that of an agent which ssh has started.
    *(beginning for cluster in CLUSTERS for beginning in cluster.private_prefixes),
)

_OPTIONS = {
    f"{prefix}{name.upper()}"
    for prefix in (PREFIX, TORCHRUN_PREFIX)
    for option in (*_LISTING, "node_rank")
    for name in OPTIONS[option].names
}


def forwarded(environ: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    """Return the variables of ``environ`` for the hosts, without those in ``unset``."""
    not_for_hosts = {*_OWN, *_OPTIONS, *unset}
    return {
        name: value
        for name, value in environ.items()
        if name not in not_for_hosts and not name.startswith(_OWN_PREFIXES)
    }


class Call(NamedTuple):
    """What the far end of a host gets (``far_end``)."""

    argv: list[str]
    """The words after "clusterrun"."""
    folder: str
    variables: Mapping[str, str]
    """On top of the host's own."""

    def message(self, mark: str) -> bytes:
        """Return the message; ``mark`` is how this host marks what is ours."""
        body = json.dumps({**self._asdict(), "version": version("clusterrun")}).encode()
        return b"%b %d\n%b" % (mark.encode(), len(body), body)


def calls(
    resolved: Resolved, over_ssh: SshTargets, line: CommandLine, environ: Mapping[str, str]
) -> Iterator[Call]:
    """Yield what each host gets, in the order of their ranks.

    Raises:
        UsageError: the current folder is deleted.

    """
    job = resolved.job
    kept = line.without({*_LISTING, "env"})
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
        yield Call(kept.with_options(own).argv(), folder, variables)


def _folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise UsageError(
            f"{FOLDER_DELETED}, and the hosts have to enter it",
            "change to another one",
        ) from None


def _env(line: CommandLine, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that says what the flags ``--env`` do, which all users could read."""
    values = [text.value for text in line.options.get("env", ())]
    texts = [environ.get(ENV_VARIABLE, ""), *values]
    return {ENV_VARIABLE: "\n".join(filter(None, texts))} if values else {}
