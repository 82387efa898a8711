"""What the report quotes of a worker's standard error."""

import pytest
from clusterrun.policy import tracebacks
from clusterrun.workers.relay import recent_output


def test_short_output_is_kept_whole() -> None:
    """A few lines are the tail themselves, empty ones included."""
    tail = recent_output.Tail()

    tail.add(b"Traceback:\n\n")
    tail.add(b"ValueError: no\n")

    assert tail.text() == "Traceback:\n\nValueError: no"


def test_the_last_lines_of_much_output_are_kept() -> None:
    """These are sixty whole lines; one that lost its beginning is left out."""
    tail = recent_output.Tail()

    for number in range(100_000):
        tail.add(b"line %d\n" % number)

    assert tail.text().splitlines() == [
        f"line {n}" for n in range(100_000 - recent_output.TAIL_LINES, 100_000)
    ]


def test_long_lines_are_cut_to_whole_ones() -> None:
    """There are some KiB at most, and no half line."""
    tail = recent_output.Tail()

    for number in range(200):
        tail.add(b"%d %s\n" % (number, b"x" * 1000))
    lines = tail.text().splitlines()

    assert len("".join(lines)) <= recent_output.TAIL_BYTES
    assert [len(line) for line in lines] == [1004] * len(lines)
    assert lines[-1].startswith("199 ")


def test_the_end_of_one_endless_line_is_kept() -> None:
    """Half a line is better than none."""
    tail = recent_output.Tail()

    tail.add(b"x" * 1_000_000 + b"the end\n")

    assert tail.text().endswith("xxthe end")
    assert len(tail.text()) == recent_output.TAIL_BYTES - 1


FRAME = b'  File "train.py", line %d, in step\n'
HEADER = b"Traceback (most recent call last):\n"


@pytest.mark.parametrize("frames", [100, 5_000])
def test_a_traceback_longer_than_the_tail_keeps_its_beginning(frames: int) -> None:
    """One line has the number of lines that are left out."""
    tail = recent_output.Tail()

    tail.add(b"before\n" + HEADER)
    for number in range(frames):
        tail.add(FRAME % number)
    tail.add(b"ValueError: boom\n")
    lines = tail.text().splitlines()

    left_out = f"  ... {frames - (tracebacks.FIRST_FRAMES - 1) - (recent_output.TAIL_LINES - 1)} lines left out ..."
    assert lines[:2] == ["Traceback (most recent call last):", '  File "train.py", line 0, in step']
    assert [number for number, line in enumerate(lines) if line == left_out] == [
        tracebacks.FIRST_FRAMES
    ]
    assert lines[-1] == "ValueError: boom"
    assert len(lines) == tracebacks.FIRST_FRAMES + 1 + recent_output.TAIL_LINES


@pytest.mark.parametrize("lines", [61, 5_000])
def test_a_traceback_that_was_logged_long_ago_is_not_kept(lines: int) -> None:
    """The script continued."""
    tail = recent_output.Tail()

    tail.add(HEADER + FRAME % 1 + b"ValueError: retried\n")
    for number in range(lines):
        tail.add(b"step %d\n" % number)

    assert len(tail.text().splitlines()) == recent_output.TAIL_LINES
    assert "retried" not in tail.text()


@pytest.mark.parametrize("more", range(4))
def test_an_ignored_exception_stays_one(more: int) -> None:
    """The tail may begin anywhere: without its first line it would look like the end of the script."""
    tail = recent_output.Tail()
    ignored = b"Exception ignored in: <Store>\n" + HEADER + FRAME % 1 + b"OSError: harmless\n"

    tail.add(ignored * 5_000 + b"bye\n" * more)

    assert tracebacks.last_traceback(tail.text().splitlines()) is None


def test_escape_sequences_and_controls_are_taken_out() -> None:
    """A report must not move the reader's cursor or change the colours."""
    text = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(B\x07bell\x00 \x1b[Aup\ttab \xff \xc3\xbc\n"

    assert recent_output.plain(text) == "red bell up\ttab \ufffd ü\n"
