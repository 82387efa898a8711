"""On a terminal, a program behaves the same under ``python -u`` and as a worker."""

from textwrap import dedent

import pytest

from tests.contract.in_place.programs_in_place import START_METHODS
from tests.contract.launched import COMMAND
from tests.contract.shell import Shell

PROGRAM = """
    import fcntl
    import getpass
    import io
    import os
    import sys
    import termios

    facts = []
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        facts.append((stream.isatty(), stream.line_buffering, stream.write_through, stream.encoding))
        facts.append((stream.errors, stream.mode, stream.name, type(stream.buffer).__name__))
        facts.append((os.ttyname(stream.fileno()) == os.ttyname(0), stream.seekable()))
    facts.append((os.tcgetpgrp(0) == os.getpgrp(), os.getpgrp() == os.getpid()))
    facts.append((tuple(os.get_terminal_size()), termios.tcgetattr(0)[3] & termios.ECHO))
    facts.append(input("a question? "))
    facts.append(sys.stdin.readline())
    facts.append(getpass.getpass("a secret? "))
    with open("/dev/tty", "w") as terminal:
        facts.append((terminal.isatty(), fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE))
    facts.append("readline" in sys.modules)
    sys.stdout.reconfigure(encoding="latin-1")
    with io.open(sys.argv[1], "w") as file:
        print(*facts, sep="\\n", file=file)
    print("answered")
    sys.exit(3)
    """


@pytest.mark.parametrize("method", START_METHODS)
def test_worker_on_terminal_equals_plain_python(shell: Shell, method: str) -> None:
    """Streams, questions, secrets and the terminal itself are those of ``python -u``."""
    (shell.folder / "asks.py").write_text(dedent(PROGRAM))

    answers = [
        answered(shell, "python -u asks.py alone.txt", "alone.txt"),
        answered(shell, f"{COMMAND} --start-method {method} asks.py ours.txt", "ours.txt"),
    ]

    assert answers[1] == answers[0]


def answered(shell: Shell, command: str, file: str) -> tuple[int, str]:
    """Enter the command and its answers; return its exit code and what it has written."""
    shell.type(command)
    shell.expect(r"a question\? ")
    shell.type("an answer")
    shell.type("a line")
    shell.expect(r"a secret\? ")
    shell.type("a word")
    shell.expect("answered")
    return shell.exit_code(), (shell.folder / file).read_text()
