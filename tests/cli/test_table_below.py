"""A table below what is printed, as a terminal gets it."""

import fcntl
import os
import select
import struct
import termios
from collections.abc import Iterator

import pytest

from tests.cli.door import (
    Line,
    TableBelow,
)
from tests.waiting import SECONDS_TO_ACT


class Terminal:
    """A pseudo terminal of 20 columns."""

    def __init__(self) -> None:
        self._ours, self.descriptor = os.openpty()
        self.resize(20)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", 10, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def expect(self, text: str) -> None:
        """Check that this is what has been written since the last call."""
        wanted, got = text.replace("\n", "\r\n").encode(), b""
        # A terminal passes on what it likes at a time.
        while len(got) < len(wanted):
            ready, _, _ = select.select([self._ours], [], [], SECONDS_TO_ACT)
            assert ready, (wanted, got)
            got += os.read(self._ours, 65536)
        assert got == wanted

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.descriptor)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """Return a terminal."""
    made = Terminal()
    yield made
    made.close()


def test_what_is_printed_goes_above(terminal: Terminal) -> None:
    """The table is removed first, and drawn again below."""
    table = TableBelow(terminal.descriptor, coloured=True)
    table.show([Line("head"), Line("bad", is_bad=True)])
    terminal.expect("head\n\x1b[1;31mbad\x1b[0m\n")

    table.print(b"one\ntwo\n")

    terminal.expect("\x1b[2A\x1b[Jone\ntwo\nhead\n\x1b[1;31mbad\x1b[0m\n")


def test_a_line_without_its_end(terminal: Terminal) -> None:
    """It is shown, and printed once it is whole, or the job has ended."""
    table = TableBelow(terminal.descriptor, coloured=False)
    table.show([Line("bad", is_bad=True)])
    table.print(b"question? ")
    terminal.expect("bad\n\x1b[1A\x1b[Jquestion? \nbad\n")

    table.print(b"answer\nnext")
    terminal.expect("\x1b[2A\x1b[Jquestion? answer\nnext\nbad\n")
    table.end()

    terminal.expect("\x1b[2A\x1b[Jnext")


def test_a_terminal_that_becomes_narrower(terminal: Terminal) -> None:
    """It has wrapped the lines of the table."""
    table = TableBelow(terminal.descriptor, coloured=False)
    table.show([Line("x" * 20), Line("short")])
    terminal.expect("x" * 20 + "\nshort\n")
    terminal.resize(8)

    table.clear()

    terminal.expect("\x1b[4A\x1b[J")
