"""Why a host is not ready: from what is printed to a sentence, which docs/several_nodes.md lists."""

from pathlib import Path

import pytest
from clusterrun.clients.ssh.faults import (
    FailedConnection,
    HostFault,
    describe,
    diagnose,
    printable_tail,
)
from clusterrun.clients.ssh.remote import Reached
from msgspec.structs import replace

PAGE = (Path(__file__).parents[2] / "docs/several_nodes.md").read_text()

FAILED = FailedConnection(
    host="gpu-02",
    python="/opt/venv/bin/python",
    reached=Reached.NOTHING,
    exit_code=255,
    waited=30.0,
    noise="",
    errors="",
)

BY_SSH = {
    "ssh: connect to host gpu-02 port 22: Connection refused": "no ssh server listens there",
    "ssh: connect to host gpu-02 port 22: No route to host": "it does not answer",
    "ssh: Could not resolve hostname gpu-02: Name or service not known": "its name does not resolve",
    "me@gpu-02: Permission denied (publickey).": "it accepts none of your keys",
    "me@gpu-02: Permission denied (publickey,password).": "and asks for a password",
    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.": (
        "its host key is not the one that is known"
    ),
    "No ED25519 host key is known for gpu-02 and you have requested strict checking.\n"
    "Host key verification failed.": "its host key is not known",
    "kex_exchange_identification: Connection closed by remote host": (
        "its ssh server closed the connection before login"
    ),
}


@pytest.mark.parametrize("errors", BY_SSH)
def test_words_of_ssh(errors: str) -> None:
    """Each has a sentence, which the page lists, and comes with what to type."""
    fault = diagnose(replace(FAILED, errors=errors))

    assert fault.message.endswith(BY_SSH[errors])
    assert BY_SSH[errors] in PAGE
    assert fault.hint or BY_SSH[errors] == "it does not answer"


OTHERS = [
    (
        replace(FAILED, errors="Bad owner or permissions on /home/me/.ssh/config"),
        HostFault("ssh failed:", "Bad owner or permissions on /home/me/.ssh/config"),
    ),
    (replace(FAILED, exit_code=None), HostFault("it did not answer within 30 s")),
    (
        replace(FAILED, exit_code=None, noise="Which queue?\n"),
        HostFault(
            "its login shell did not run our command within 30 s; it printed:", "Which queue?"
        ),
    ),
    (
        replace(FAILED, exit_code=1, noise="account closed\n", errors="ask us\n"),
        HostFault(
            "its login shell ended with 1 instead of running our command; it printed:",
            "account closed\nask us",
        ),
    ),
    (
        replace(FAILED, reached=Reached.SHELL, exit_code=1, errors="No module named clusterrun"),
        HostFault(
            "/opt/venv/bin/python has no clusterrun there",
            "install it there:\n  /opt/venv/bin/python -m pip install clusterrun",
            is_mistake=True,
        ),
    ),
    (
        replace(
            FAILED,
            reached=Reached.SHELL,
            exit_code=1,
            errors="No module named clusterrun.clients.ssh.bootstrap",
        ),
        HostFault(
            "/opt/venv/bin/python has an older clusterrun there",
            "install the same version on all hosts",
            is_mistake=True,
        ),
    ),
    (
        replace(FAILED, reached=Reached.SHELL, exit_code=2, errors="Unknown option: -P"),
        HostFault("/opt/venv/bin/python ended with 2", "Unknown option: -P"),
    ),
]


@pytest.mark.parametrize(("last", "expected"), OTHERS)
def test_other_ends(last: FailedConnection, expected: HostFault) -> None:
    """What was printed is shown."""
    assert diagnose(last) == expected
    assert expected.message.partition(";")[0] in PAGE or not last.noise


def test_no_interpreter() -> None:
    """The path that was looked for is named."""
    fault = diagnose(replace(FAILED, reached=Reached.NO_INTERPRETER, exit_code=127))

    assert fault.message == "there is no interpreter /opt/venv/bin/python there"
    assert fault.message in PAGE


def test_hosts_with_the_same_fault_share_a_line() -> None:
    """Of many hosts the first ones are named."""
    faults = {f"n{number}": HostFault("it does not answer") for number in range(12)}

    message, hint = describe({**faults, "m": HostFault("no", "type\n  this")}, 64)

    assert message == "13 of 64 hosts are not ready; nothing was started"
    assert hint == (
        "n0, n1, n2, n3, n4, n5, n6, ... and 5 more: it does not answer\nm: no\n  type\n    this"
    )


def test_the_only_host() -> None:
    """Its fault is the message."""
    assert describe({"a": HostFault("no", "type this")}, 1) == (
        "a: no; nothing was started",
        "type this",
    )


def test_what_another_host_prints_does_nothing_to_a_terminal() -> None:
    """No colours, no other order of letters, no more than a screen; ssh ends its lines with CR LF."""
    shell = b"motd\r\n\x1b]0;title\x07\x1b[2J\xe2\x80\xae\xe2\x80\x8f\xd8\x9crm -rf\r\n"

    assert printable_tail(shell) == "motd\n?]0;title??[2J???rm -rf\n"
    many = printable_tail(b"x" * 100_000 + b"\n" + b"line\n" * 10_000)
    assert many.count("\n") < 50
    assert len(printable_tail(b"x" * 100_000)) < 300
