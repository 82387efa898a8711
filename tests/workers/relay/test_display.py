"""Lines of several workers on one terminal or file, with a live line below them."""

import fcntl
import os
import struct
import termios
from collections.abc import Iterator

import pytest

from tests.workers.door import (
    Display,
    Source,
    coloured,
)

CLEAR = b"\r\x1b[K"
FIRST = Source((0, 0), b"[rank 0] ")
SECOND = Source((1, 0), b"[rank 1] ")


class Paper:
    """An output that keeps what was written."""

    failure: OSError | None = None

    def __init__(self) -> None:
        self.text = b""
        self.waiting = 0

    def write(self, data: bytes) -> None:
        self.text += data

    def loss(self) -> None: ...


@pytest.fixture
def paper() -> Paper:
    return Paper()


@pytest.fixture
def terminal() -> Iterator[int]:
    """Return a terminal of 30 columns."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    yield theirs
    os.close(ours)
    os.close(theirs)


def test_lines_have_their_prefix(paper: Paper) -> None:
    display = Display(paper, None)

    display.show(FIRST, b"a\nb\n")
    display.show(SECOND, b"c\n")

    assert paper.text == b"[rank 0] a\n[rank 0] b\n[rank 1] c\n"


def test_a_long_line_is_one_line_while_nobody_else_prints(paper: Paper) -> None:
    """Its pieces have one prefix; a line of another rank breaks it visibly."""
    display = Display(paper, None)

    display.show(FIRST, b"one ")
    display.show(FIRST, b"two ")
    display.show(SECOND, b"hello\n")
    display.show(FIRST, b"three\n")

    assert paper.text == b"[rank 0] one two \n[rank 1] hello\n[rank 0] three\n"


def test_a_notice_begins_its_own_line(paper: Paper) -> None:
    """The launcher's line does not follow what a single worker left unfinished."""
    display = Display(paper, None)

    display.show(Source((0, 0), b""), b"prompt> ")
    display.notice(b"clusterrun: hello\n")
    display.show(Source((0, 0), b""), b"answer")

    assert paper.text == b"prompt> \nclusterrun: hello\nanswer"


def test_the_lowest_rank_has_the_live_line(paper: Paper, terminal: int) -> None:
    """Of two progress bars rank 0's is drawn, then the other once rank 0's has ended."""
    display = Display(paper, terminal)

    display.update(SECOND, b"20%")
    display.update(FIRST, b"10%")
    display.redraw(1.0)
    display.update(FIRST, b"")
    display.redraw(2.0)

    assert paper.text == CLEAR + b"[rank 0] 10%" + CLEAR + b"[rank 1] 20%"


def test_whole_lines_go_above_the_live_line(paper: Paper, terminal: int) -> None:
    """It is removed before they are printed, and drawn again after them."""
    display = Display(paper, terminal)
    display.update(FIRST, b"10%")
    display.redraw(1.0)
    paper.text = b""

    display.show(SECOND, b"hello\n")
    display.redraw(2.0)

    assert paper.text == CLEAR + b"[rank 1] hello\n" + CLEAR + b"[rank 0] 10%"


def test_ten_redraws_a_second_are_enough(paper: Paper, terminal: int) -> None:
    """This holds however often a bar moves; ``due`` is the time of the next redraw."""
    display = Display(paper, terminal)

    for step in range(1000):
        display.update(FIRST, b"%d" % step)
        display.redraw(step / 1000)

    assert 9 <= paper.text.count(CLEAR) <= 11
    assert display.due == pytest.approx(1.0, abs=0.01)


def test_nothing_is_due_when_nothing_changed(paper: Paper, terminal: int) -> None:
    """Nothing wakes the relay then."""
    display = Display(paper, terminal)
    assert display.due is None

    display.update(FIRST, b"10%")
    display.redraw(1.0)
    display.update(FIRST, b"10%")

    assert display.due is None


def test_a_stopped_terminal_gets_no_redraws(paper: Paper, terminal: int) -> None:
    """While lines wait for it, bars would only add to what waits."""
    display = Display(paper, terminal)
    display.update(FIRST, b"10%")

    paper.waiting = 1
    display.redraw(1.0)

    assert display.due is None
    assert paper.text == b""


def test_the_live_line_is_cut_to_the_width(paper: Paper, terminal: int) -> None:
    """A wrapped line could not be cleared; wide characters count twice, colours not at all."""
    display = Display(paper, terminal)

    display.update(FIRST, b"\x1b[K\x1b[32m" + "\u5b57".encode() * 20)
    display.redraw(1.0)

    assert paper.text.decode() == f"{CLEAR.decode()}[rank 0] \x1b[32m{chr(0x5B57) * 10}\x1b[0m"


def test_the_end_leaves_no_live_line(paper: Paper, terminal: int) -> None:
    """The shell's prompt begins on an empty line."""
    display = Display(paper, terminal)
    display.update(FIRST, b"10%")
    display.redraw(1.0)
    paper.text = b""

    display.clear()
    display.redraw(2.0)

    assert paper.text == CLEAR


def test_files_have_no_live_line(paper: Paper) -> None:
    """They get whole lines only."""
    display = Display(paper, None)

    display.update(FIRST, b"10%")
    display.redraw(1.0)

    assert paper.text == b""


def test_colours_differ_and_end_with_the_prefix() -> None:
    """Adjacent ranks differ; the space after a prefix has no colour."""
    prefixes = [coloured("[rank 3] ", colour) for colour in range(10)]

    assert len(set(prefixes)) == 10
    assert all(prefix.endswith("m[rank 3]\x1b[0m ") for prefix in prefixes)


@pytest.mark.parametrize("prefix", ["", "  ", "\x1b[7m3\x1b[0m "])
def test_what_has_its_own_look_keeps_it(prefix: str) -> None:
    """A user's prefix may be empty, or have its own colours."""
    assert coloured(prefix, 1) == prefix
