"""Explain why a host can't take part, from the output of ssh, a login shell or an interpreter."""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterrun.bounds import MAX_NAME_LENGTH, as_text
from clusterrun.clients.ssh.remote import Stage

MAX_LINES = 40
"""The number of lines of a host's output that are shown."""


class HostFault(Struct, frozen=True):
    """Why a host can't take part in the job."""

    message: str
    hint: str = ""
    is_mistake: bool = False
    """The host was reached, but can't run this job as it is."""


class FailedConnection(Struct, frozen=True):
    """A connection that ended, or timed out, before its host was ready."""

    host: str
    python: str
    """The path of the interpreter."""
    stage: Stage
    exit_code: int | None
    """The exit code of ssh; None after a timeout."""
    seconds: float
    """The timeout."""
    shell_output: str
    """Standard output of the login shell, before our command."""
    errors: str
    """Standard error."""


_SSH_ERRORS: Sequence[tuple[str, str, str]] = (
    # Pattern, message, hint.
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key differs from the one in known_hosts",
        "if its administrator confirms that it has a new one:\n  ssh-keygen -R {host}",
    ),
    (
        "Host key verification failed",
        "its host key is not known",
        "connect once by hand, and compare the key:\n  ssh {host}",
    ),
    (
        r"Permission denied \([^)]*(password|keyboard-interactive)",
        "it accepts none of your keys, and asks for a password",
        "give it your key:\n  ssh-copy-id {host}",
    ),
    (
        "Permission denied",
        "it accepts none of your keys",
        "load yours with ssh-add, or name one that it has:\n  --ssh-options '-i KEY'",
    ),
    (
        "Too many authentication failures",
        "it has refused too many keys",
        "name the right one:\n  --ssh-options '-o IdentitiesOnly=yes -i KEY'",
    ),
    (
        "Could not resolve hostname",
        "its name does not resolve",
        "correct the name, or add it to ~/.ssh/config",
    ),
    (
        "Connection refused",
        "no ssh server listens there",
        "if it has another port:\n  --ssh-options '-p PORT'",
    ),
    (
        "Connection timed out|Operation timed out|No route to host|Network is unreachable",
        "it does not answer",
        "",
    ),
    (
        "kex_exchange_identification|ssh_exchange_identification|Connection (reset|closed) by",
        "its ssh server closed the connection before login",
        "if there were too many connections at once, raise MaxStartups in its sshd_config",
    ),
)


def diagnose(connection: FailedConnection) -> HostFault:
    """Explain why the host is not ready."""
    if connection.stage is Stage.NO_INTERPRETER:
        return HostFault(
            f"there is no interpreter {connection.python} there",
            "install it at the same path on all hosts, or name one that has clusterrun:\n"
            "  --python PATH",
            is_mistake=True,
        )
    if connection.stage is Stage.CONNECTING:
        return _diagnose_ssh(connection)
    if connection.exit_code is None:
        return HostFault(
            f"{connection.python} did not answer within {connection.seconds:g} s", connection.errors
        )
    if re.search(r"No module named '?clusterrun\.", connection.errors):
        return HostFault(
            f"{connection.python} has an older clusterrun there",
            "install the same version on all hosts",
            is_mistake=True,
        )
    if re.search("No module named '?clusterrun", connection.errors):
        return HostFault(
            f"{connection.python} has no clusterrun there",
            f"install it there:\n  {connection.python} -m pip install clusterrun",
            is_mistake=True,
        )
    return HostFault(f"{connection.python} ended with {connection.exit_code}", connection.errors)


def _diagnose_ssh(connection: FailedConnection) -> HostFault:
    for pattern, message, hint in _SSH_ERRORS if connection.exit_code in {None, 255} else ():
        if re.search(pattern, connection.errors):
            return HostFault(message, hint.format(host=connection.host))
    printed = "\n".join(filter(None, (connection.shell_output.strip(), connection.errors.strip())))
    if connection.exit_code is None:
        if not printed:
            return HostFault(f"it did not answer within {connection.seconds:g} s", "")
        return HostFault(
            f"its login shell did not run our command within {connection.seconds:g} s; it printed:",
            printed,
        )
    if connection.exit_code == 255 and not connection.shell_output.strip():
        return HostFault("ssh failed:" if printed else "ssh failed", printed)
    what = f"its login shell ended with {connection.exit_code} instead of running our command"
    return HostFault(f"{what}; it printed:" if printed else what, printed)


def printable_tail(printed: bytes | bytearray) -> str:
    """Return the last lines of output from ssh or a host, without control characters."""
    lines = bytes(printed).decode(errors="replace").replace("\r", "").split("\n")
    return as_text("\n".join(line[:MAX_NAME_LENGTH] for line in lines[-MAX_LINES:]))


def describe_faults(faults: Mapping[str, HostFault], hosts: int) -> tuple[str, str]:
    """Return the error message and hint for all hosts that are not ready."""
    if len(faults) == 1 and hosts == 1:
        (host, fault), *_ = faults.items()
        return f"{host}: {fault.message}; nothing was started", fault.hint
    message = f"{len(faults)} of {hosts} hosts are not ready; nothing was started"
    if len(faults) == 1:
        message = f"one of {hosts} hosts is not ready; nothing was started"
    return message, "\n".join(_fault_lines(faults))


def _fault_lines(faults: Mapping[str, HostFault]) -> Iterable[str]:
    groups: dict[HostFault, list[str]] = {}
    for host, fault in faults.items():
        groups.setdefault(fault, []).append(host)
    for fault, names in groups.items():
        shown = names if len(names) <= 8 else [*names[:7], f"... and {len(names) - 7} more"]
        yield f"{', '.join(shown)}: {fault.message}"
        yield from (f"  {line}" for line in fault.hint.splitlines())
