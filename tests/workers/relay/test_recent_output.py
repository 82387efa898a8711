"""The last lines of a worker: the end of its standard error, and its last line of output."""

import pytest
from clusterrun.policy import tracebacks
from clusterrun.workers.relay import recent_output


def test_short_output_is_kept_whole() -> None:
    """Empty lines included."""
    tail = recent_output.Tail()

    tail.add(b"Traceback:\n\n")
    tail.add(b"ValueError: no\n")

    assert tail.text() == "Traceback:\n\nValueError: no"


def test_the_last_lines_of_much_output_are_kept() -> None:
    """Sixty whole lines."""
    tail = recent_output.Tail()

    for number in range(100_000):
        tail.add(b"line %d\n" % number)

    assert tail.text().splitlines() == [
        f"line {n}" for n in range(100_000 - recent_output.TAIL_LINES, 100_000)
    ]


def test_long_lines_are_kept_whole_or_not_at_all() -> None:
    """At most some KiB."""
    tail = recent_output.Tail()

    for number in range(200):
        tail.add(b"%d %s\n" % (number, b"x" * 1000))
    lines = tail.text().splitlines()

    assert len("".join(lines)) <= recent_output.TAIL_BYTES
    assert [len(line) for line in lines] == [1004] * len(lines)
    assert lines[-1].startswith("199 ")


def test_end_of_an_endless_line_is_kept() -> None:
    tail = recent_output.Tail()

    tail.add(b"x" * 1_000_000 + b"the end\n")

    assert tail.text().endswith("xxthe end")
    assert len(tail.text()) == recent_output.TAIL_BYTES - 1


FRAME = b'  File "train.py", line %d, in step\n'
HEADER = b"Traceback (most recent call last):\n"


@pytest.mark.parametrize("frames", [100, 5_000])
def test_traceback_longer_than_the_tail_keeps_its_beginning(frames: int) -> None:
    """One line has the number of omitted lines."""
    tail = recent_output.Tail()

    tail.add(b"before\n" + HEADER)
    for number in range(frames):
        tail.add(FRAME % number)
    tail.add(b"ValueError: boom\n")
    lines = tail.text().splitlines()

    left_out = (
        f"  ... {frames - (tracebacks.FIRST_FRAMES - 1) - (recent_output.TAIL_LINES - 1)} lines"
        " omitted ..."
    )
    assert lines[:2] == ["Traceback (most recent call last):", '  File "train.py", line 0, in step']
    assert [number for number, line in enumerate(lines) if line == left_out] == [
        tracebacks.FIRST_FRAMES
    ]
    assert lines[-1] == "ValueError: boom"
    assert len(lines) == tracebacks.FIRST_FRAMES + 1 + recent_output.TAIL_LINES


@pytest.mark.parametrize("lines", [61, 5_000])
def test_beginning_of_an_earlier_traceback_is_dropped(lines: int) -> None:
    """The script continued after it."""
    tail = recent_output.Tail()

    tail.add(HEADER + FRAME % 1 + b"ValueError: retried\n")
    for number in range(lines):
        tail.add(b"step %d\n" % number)

    assert len(tail.text().splitlines()) == recent_output.TAIL_LINES
    assert "retried" not in tail.text()


@pytest.mark.parametrize("more", range(4))
def test_ignored_exception_keeps_its_first_line(more: int) -> None:
    """Without that line it would look like the end of the script."""
    tail = recent_output.Tail()
    ignored = b"Exception ignored in: <Store>\n" + HEADER + FRAME % 1 + b"OSError: harmless\n"

    tail.add(ignored * 5_000 + b"bye\n" * more)

    assert tracebacks.last_traceback(tail.text().splitlines()) is None


def test_escape_sequences_and_control_characters_are_removed() -> None:
    text = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(B\x07bell\x00 \x1b[Aup\ttab \xff \xc3\xbc\n"

    assert recent_output.plain(text) == "red bell up\ttab \ufffd ü\n"


def test_last_line_is_not_blank() -> None:
    """Scripts end with empty lines, in the same read or in the next one."""
    recent = recent_output.Recent()
    assert recent.last_line() == b""
    recent.add(b"one\ntwo\n\n")
    recent.add(b" \n\n")
    recent.add(b"")

    assert recent.last_line() == b"two"
    assert recent.lines == 5


def test_long_line_in_pieces_needs_bounded_memory() -> None:
    recent = recent_output.Recent()
    recent.add(b"first\n" + b"x" * 1_000_000)
    recent.add(b"y" * 1_000_000)

    assert recent.last_line() == b"y" * recent_output.RECENT_BYTES
    assert recent.lines == 1
