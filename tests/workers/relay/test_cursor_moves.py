"""What a terminal shows of ranks that would move its cursor."""

import pytest

from tests.workers.door import streams

UP = b"\x1b[2K\x1b[1A\x1b[2K"
"""As rich 13 to 15 begin to draw a bar of two lines again; LineBuffer has taken the return."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"\x1b[1;31mloss\x1b[0m 0.5\n", b"\x1b[1;31mloss\x1b[0m 0.5\n"),
        (b"\x1b[?25l\x1b[2J\x1b[3;1Hloss\x1b[K 0.5\n", b"loss 0.5\n"),
        (b"\x1b[?25h", b""),
    ],
)
def test_colours_stay_and_movements_go(text: bytes, shown: bytes) -> None:
    """The lines of all ranks share one screen."""
    assert streams.without_movements(text) == shown
    assert streams.RedrawFilter().feed(text) == shown


@pytest.mark.parametrize("height", [2, 3])
def test_a_bar_of_several_lines_is_shown_at_its_end(height: int) -> None:
    """Its first drawing is shown as lines; each later one replaces the one before."""
    redraws = streams.RedrawFilter()
    up = b"\x1b[2K" + b"\x1b[1A\x1b[2K" * (height - 1)
    begin, half, end = (b"%d%%\n" % percent * (height - 1) for percent in (0, 50, 100))

    drawn = [redraws.feed(lines) for lines in (begin, up + half, up + end, b"last\n", b"next\n")]

    assert drawn == [begin, b"", b"", end + b"last\n", b"next\n"]


def test_a_screen_that_is_cleared_is_no_bar() -> None:
    """What follows is shown at once."""
    assert streams.RedrawFilter().feed(b"\x1b[999A\x1b[Jone\ntwo\n") == b"one\ntwo\n"


def test_nothing_is_held_back_for_good() -> None:
    """The stream may end in the middle of a drawing."""
    redraws = streams.RedrawFilter()

    assert redraws.feed(UP + b"one\n") == b""
    assert redraws.finish() == b"one\n"
    assert redraws.finish() == b""


def test_a_line_above_a_bar_is_shown() -> None:
    """Rich moves up, prints it, and draws its bar below."""
    redraws = streams.RedrawFilter()

    shown = (
        redraws.feed(UP + b"epoch 1\n") + redraws.feed(b"one 5%\n") + redraws.feed(UP + b"one\n")
    )

    assert shown == b"epoch 1\none 5%\n"
