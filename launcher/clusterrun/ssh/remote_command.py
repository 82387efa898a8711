"""The command that ssh runs on a host, and what it prints before the starter does.

The user's login shell reads this command first, be it sh, fish or csh; so it is the same for every
job, and has only what is written alike in all of them. All else goes through standard input.
"""

from collections.abc import Iterable
from enum import Enum

REACHED = b"clusterrun-reached"
"""A line of this alone: all before it was printed by the login shell's own files."""

NO_INTERPRETER = b"clusterrun-no-interpreter"
"""A line: none of the interpreters is on the host."""

STARTER = b"clusterrun-starter"
"""A line: the starter runs; frames follow."""

# sh's own read takes one byte at a time, and leaves the rest to the interpreter.
COMMAND = (
    "exec /bin/sh -c '"
    f'echo; echo "{REACHED.decode()}"; '
    'python=; while IFS= read -r path && test -n "$path"; do '
    'test -z "$python" && test -x "$path" && python=$path; done; '
    'test -n "$python" && exec "$python" -P -u -m clusterrun.ssh.starter; '
    f'echo "{NO_INTERPRETER.decode()}"; exit 127'
    "'"
)


def interpreter_lines(paths: Iterable[str]) -> bytes:
    """Return the lines that ``COMMAND`` reads: it executes the first one that the host has."""
    return "".join(f"{path}\n" for path in (*paths, "")).encode(errors="surrogateescape")


class Reached(Enum):
    """What runs at the other end of a connection."""

    NOTHING = "nothing"
    """Nothing of ours has run."""
    SHELL = "shell"
    """Our command runs, and has no interpreter yet."""
    NO_INTERPRETER = "no interpreter"
    STARTER = "starter"
    """Frames follow."""


MOST_NOISE = 1 << 14
"""Bytes of what a login shell prints that are kept: its end."""


class Greeting:
    """Tells what a login shell prints from what is ours, until the starter's frames begin."""

    def __init__(self) -> None:
        self.reached = Reached.NOTHING
        self.noise = bytearray()
        """What was printed before our command ran."""
        self._received = b""

    def feed(self, data: bytes) -> bytes:
        """Take ``data``; return what belongs to the frames."""
        self._received += data
        while self.reached is not Reached.STARTER:
            line, newline, rest = self._received.partition(b"\n")
            if not newline:
                self._received = line[-MOST_NOISE:]
                return b""
            self._received = rest
            self._take_line(line)
        frames, self._received = self._received, b""
        return frames

    def _take_line(self, line: bytes) -> None:
        if self.reached is Reached.NOTHING:
            if line.strip() == REACHED:
                self.reached = Reached.SHELL
            else:
                self.noise += line + b"\n"
                del self.noise[:-MOST_NOISE]
        elif line == NO_INTERPRETER:
            self.reached = Reached.NO_INTERPRETER
        elif line == STARTER:
            self.reached = Reached.STARTER
