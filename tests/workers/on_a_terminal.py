"""Programs that run on a terminal of their own, as a launcher in the foreground of a shell does."""

import json
import os
import pty
import subprocess
import sys
from textwrap import dedent

_PRELUDE = """
import fcntl, json, os, signal, subprocess, sys, termios
answer_to = int(sys.argv[1])
fcntl.ioctl(0, termios.TIOCSCTTY, 0)

def answer(*values):
    os.write(answer_to, json.dumps(values).encode())
"""


def answer_of(code: str) -> list[object]:
    """Return what ``code`` answers, run as the leader of a session whose terminal is its 0, 1, 2."""
    ours, terminal = pty.openpty()
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _PRELUDE + dedent(code), str(writer)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        pass_fds=[writer],
        start_new_session=True,
    )
    os.close(writer)
    os.close(terminal)
    try:
        code_of_end = process.wait(30)
        printed = "" if code_of_end == 0 else os.read(ours, 1 << 16).decode()
        assert (code_of_end, printed) == (0, "")
        with open(reader, encoding="utf-8", closefd=False) as answers:
            answer: list[object] = json.loads(answers.read())
        return answer
    finally:
        process.kill()
        process.wait(10)
        os.close(reader)
        os.close(ours)
