"""The command that a login shell runs on a host."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ssh.door import (
    AGENT,
    COMMAND,
    NO_INTERPRETER,
    REACHED,
    Greeting,
    Reached,
    interpreter_lines,
)

SHELLS = [shell for shell in ("sh", "bash", "fish", "csh", "tcsh", "zsh") if shutil.which(shell)]


def run_in(shell: str, sent: bytes) -> "subprocess.CompletedProcess[bytes]":
    """Run the command as sshd has a login shell run it."""
    return subprocess.run(
        [shell, "-c", COMMAND], input=sent, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_the_first_interpreter(shell: str) -> None:
    """Interpreters that the host lacks are passed over; the agent ends as nothing follows."""
    done = run_in(shell, interpreter_lines(["/nowhere/python", sys.executable, "/bin/false"]))

    greeting = Greeting()
    assert greeting.feed(done.stdout) == b""
    assert greeting.reached is Reached.AGENT
    assert greeting.noise == b"\n"
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("shell", SHELLS)
def test_no_interpreter(shell: str) -> None:
    """The host has none of them."""
    done = run_in(shell, interpreter_lines(["/nowhere/python", "/no where/it's"]))

    greeting = Greeting()
    greeting.feed(done.stdout)
    assert (greeting.reached, done.returncode) == (Reached.NO_INTERPRETER, 127)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_path_with_odd_characters(shell: str, tmp_path: Path) -> None:
    """It is not the shell that reads it."""
    odd = tmp_path / 'it\'s "mine" $HOME; \\ *'
    odd.symlink_to(sys.executable)

    done = run_in(shell, interpreter_lines([str(odd)]))

    assert REACHED in done.stdout
    assert NO_INTERPRETER not in done.stdout


def test_what_a_login_shell_prints_is_kept_apart() -> None:
    """Even if it ends without a line break, or arrives in pieces."""
    greeting = Greeting()
    sent = b"welcome\nno end of line\n" + REACHED + b"\n" + AGENT + b"\n\x04messages\n"

    messages = b"".join(greeting.feed(bytes([number])) for number in sent)

    assert greeting.noise == b"welcome\nno end of line\n"
    assert messages == b"\x04messages\n"


@pytest.mark.parametrize("text", [b"endless ", b"endless\n"])
def test_a_login_shell_that_prints_without_end_takes_no_memory(text: bytes) -> None:
    """The end of it is kept; our command may still run."""
    greeting = Greeting()
    for _ in range(1000):
        greeting.feed(1000 * text)
    assert greeting.feed(b"\n" + REACHED + b"\n" + AGENT + b"\n\x04messages\n") == b"\x04messages\n"

    assert len(greeting.noise) < 1 << 16
