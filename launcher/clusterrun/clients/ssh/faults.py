"""Why a host cannot take part: what ssh, a login shell and an interpreter print -> a sentence. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from clusterrun.bounds import MAX_NAME_LENGTH, as_text
from clusterrun.clients.ssh.remote import Reached

MAX_LINES = 40
"""Of what a host has printed that is not ready."""


class HostFault(Struct, frozen=True):
    """Why a host cannot take part, and what to type."""

    message: str
    hint: str = ""
    is_mistake: bool = False
    """The host was reached; what is asked of it is impossible."""


class FailedConnection(Struct, frozen=True):
    """What is known of a connection that ended, or was given up, before its host was ready."""

    host: str
    python: str
    """The interpreter that was looked for."""
    reached: Reached
    exit_code: int | None
    """ssh's; None: it was given up after ``waited`` seconds."""
    waited: float
    noise: str
    """What was printed to standard output before our command."""
    errors: str
    """What was printed to standard error."""


_OWN_WORDS: Sequence[tuple[str, str, str]] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one that is known",
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
        "if that was too many connections at a time, raise MaxStartups of its sshd_config",
    ),
)


def diagnose(last: FailedConnection) -> HostFault:
    """Return why the host is not ready."""
    if last.reached is Reached.NO_INTERPRETER:
        return HostFault(
            f"there is no interpreter {last.python} there",
            "install it at the same path on all hosts, or name one that has clusterrun:\n"
            "  --python PATH",
            is_mistake=True,
        )
    if last.reached is Reached.NOTHING:
        return _not_reached(last)
    if last.exit_code is None:
        return HostFault(f"{last.python} did not answer within {last.waited:g} s", last.errors)
    if re.search(r"No module named '?clusterrun\.", last.errors):
        return HostFault(
            f"{last.python} has an older clusterrun there",
            "install the same version on all hosts",
            is_mistake=True,
        )
    if re.search("No module named '?clusterrun", last.errors):
        return HostFault(
            f"{last.python} has no clusterrun there",
            f"install it there:\n  {last.python} -m pip install clusterrun",
            is_mistake=True,
        )
    return HostFault(f"{last.python} ended with {last.exit_code}", last.errors)


def _not_reached(last: FailedConnection) -> HostFault:
    for pattern, message, hint in _OWN_WORDS if last.exit_code in {None, 255} else ():
        if re.search(pattern, last.errors):
            return HostFault(message, hint.format(host=last.host))
    printed = "\n".join(filter(None, (last.noise.strip(), last.errors.strip())))
    if last.exit_code is None:
        if not printed:
            return HostFault(f"it did not answer within {last.waited:g} s", "")
        return HostFault(
            f"its login shell did not run our command within {last.waited:g} s; it printed:",
            printed,
        )
    if last.exit_code == 255 and not last.noise.strip():
        return HostFault("ssh failed:" if printed else "ssh failed", printed)
    what = f"its login shell ended with {last.exit_code} instead of running our command"
    return HostFault(f"{what}; it printed:" if printed else what, printed)


def printable_tail(printed: bytes | bytearray) -> str:
    """Return the end of what ssh or another host has printed, as lines that no terminal obeys."""
    lines = bytes(printed).decode(errors="replace").replace("\r", "").split("\n")
    return as_text("\n".join(line[:MAX_NAME_LENGTH] for line in lines[-MAX_LINES:]))


def describe(faults: Mapping[str, HostFault], hosts: int) -> tuple[str, str]:
    """Return the message and the hint of the error for all hosts that are not ready."""
    if len(faults) == 1 and hosts == 1:
        (host, fault), *_ = faults.items()
        return f"{host}: {fault.message}; nothing was started", fault.hint
    message = f"{len(faults)} of {hosts} hosts are not ready; nothing was started"
    if len(faults) == 1:
        message = f"one of {hosts} hosts is not ready; nothing was started"
    return message, "\n".join(_lines(faults))


def _lines(faults: Mapping[str, HostFault]) -> Iterable[str]:
    groups: dict[HostFault, list[str]] = {}
    for host, fault in faults.items():
        groups.setdefault(fault, []).append(host)
    for fault, names in groups.items():
        shown = names if len(names) <= 8 else [*names[:7], f"... and {len(names) - 7} more"]
        yield f"{', '.join(shown)}: {fault.message}"
        yield from (f"  {line}" for line in fault.hint.splitlines())
