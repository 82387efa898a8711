"""Explanations of why a host is not ready, which docs/several_nodes.md lists."""

from pathlib import Path

import pytest
from clusterrun.clients.ssh.faults import (
    FailedConnection,
    HostFault,
    describe_faults,
    diagnose,
    printable_tail,
)
from clusterrun.clients.ssh.remote import Stage
from msgspec.structs import replace

PAGE = (Path(__file__).parents[2] / "docs/several_nodes.md").read_text()

FAILED = FailedConnection(
    host="gpu-02",
    python="/opt/venv/bin/python",
    stage=Stage.CONNECTING,
    exit_code=255,
    seconds=30.0,
    shell_output="",
    errors="",
)

SSH_ERRORS = {
    "ssh: connect to host gpu-02 port 22: Connection refused": "no ssh server listens there",
    "ssh: connect to host gpu-02 port 22: No route to host": "it does not answer",
    "ssh: Could not resolve hostname gpu-02: Name or service not known": "its name does not resolve",
    "me@gpu-02: Permission denied (publickey).": "it accepts none of your keys",
    "me@gpu-02: Permission denied (publickey,password).": "and asks for a password",
    "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.": (
        "its host key differs from the one in known_hosts"
    ),
    "No ED25519 host key is known for gpu-02 and you have requested strict checking.\n"
    "Host key verification failed.": "its host key is not known",
    "kex_exchange_identification: Connection closed by remote host": (
        "its ssh server closed the connection before login"
    ),
}


@pytest.mark.parametrize("errors", SSH_ERRORS)
def test_ssh_error_has_message_and_hint(errors: str) -> None:
    """The page lists the messages."""
    fault = diagnose(replace(FAILED, errors=errors))

    assert fault.message.endswith(SSH_ERRORS[errors])
    assert SSH_ERRORS[errors] in PAGE
    assert fault.hint or SSH_ERRORS[errors] == "it does not answer"


OTHERS = [
    (
        replace(FAILED, errors="Bad owner or permissions on /home/me/.ssh/config"),
        HostFault("ssh failed:", "Bad owner or permissions on /home/me/.ssh/config"),
    ),
    (replace(FAILED, exit_code=None), HostFault("it did not answer within 30 s")),
    (
        replace(FAILED, exit_code=None, shell_output="Which queue?\n"),
        HostFault(
            "its login shell did not run our command within 30 s; it printed:", "Which queue?"
        ),
    ),
    (
        replace(FAILED, exit_code=1, shell_output="account closed\n", errors="ask us\n"),
        HostFault(
            "its login shell ended with 1 instead of running our command; it printed:",
            "account closed\nask us",
        ),
    ),
    (
        replace(FAILED, stage=Stage.SHELL, exit_code=1, errors="No module named clusterrun"),
        HostFault(
            "/opt/venv/bin/python has no clusterrun there",
            "install it there:\n  /opt/venv/bin/python -m pip install clusterrun",
            is_mistake=True,
        ),
    ),
    (
        replace(
            FAILED,
            stage=Stage.SHELL,
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
        replace(FAILED, stage=Stage.SHELL, exit_code=2, errors="Unknown option: -P"),
        HostFault("/opt/venv/bin/python ended with 2", "Unknown option: -P"),
    ),
]


@pytest.mark.parametrize(("connection", "expected"), OTHERS)
def test_other_failures(connection: FailedConnection, expected: HostFault) -> None:
    assert diagnose(connection) == expected
    assert expected.message.partition(";")[0] in PAGE or not connection.shell_output


def test_missing_interpreter_is_named() -> None:
    fault = diagnose(replace(FAILED, stage=Stage.NO_INTERPRETER, exit_code=127))

    assert fault.message == "there is no interpreter /opt/venv/bin/python there"
    assert fault.message in PAGE


def test_hosts_with_equal_faults_share_a_line() -> None:
    """Of many hosts, the first are named."""
    faults = {f"n{number}": HostFault("it does not answer") for number in range(12)}

    message, hint = describe_faults({**faults, "m": HostFault("no", "type\n  this")}, 64)

    assert message == "13 of 64 hosts are not ready; nothing was started"
    assert hint == (
        "n0, n1, n2, n3, n4, n5, n6, ... and 5 more: it does not answer\nm: no\n  type\n    this"
    )


def test_fault_of_only_host_is_the_message() -> None:
    assert describe_faults({"a": HostFault("no", "type this")}, 1) == (
        "a: no; nothing was started",
        "type this",
    )


def test_output_of_host_is_shortened_and_control_characters_replaced() -> None:
    """Escape sequences and bidirectional controls are replaced; CR LF of ssh becomes LF."""
    shell = b"motd\r\n\x1b]0;title\x07\x1b[2J\xe2\x80\xae\xe2\x80\x8f\xd8\x9crm -rf\r\n"

    assert printable_tail(shell) == "motd\n?]0;title??[2J???rm -rf\n"
    many = printable_tail(b"x" * 100_000 + b"\n" + b"line\n" * 10_000)
    assert many.count("\n") < 50
    assert len(printable_tail(b"x" * 100_000)) < 300
