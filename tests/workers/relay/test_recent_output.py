"""The last lines of a worker: the end of its standard error, and its last line of output."""

import pytest
from clusterrun.policy import tracebacks
from clusterrun.workers.relay import recent_output


def tail_of(*parts: bytes) -> str:
    """Return the end of what is printed in these parts."""
    tail = recent_output.Tail()
    for part in parts:
        tail.add(part)
    return tail.text()


def test_short_output_is_kept_whole() -> None:
    assert tail_of(b"Traceback:\n\n", b"ValueError: no\n") == "Traceback:\n\nValueError: no"


def test_the_last_lines_of_much_output_are_kept() -> None:
    lines = tail_of(*(b"line %d\n" % number for number in range(100_000))).splitlines()

    assert lines == [f"line {n}" for n in range(100_000 - recent_output.TAIL_LINES, 100_000)]


def test_long_lines_are_kept_whole_or_not_at_all() -> None:
    lines = tail_of(*(b"%d %s\n" % (n, b"x" * 1000) for n in range(200))).splitlines()

    assert len("".join(lines)) <= recent_output.TAIL_BYTES
    assert [len(line) for line in lines] == [1004] * len(lines)
    assert lines[-1].startswith("199 ")


def test_end_of_an_endless_line_is_kept() -> None:
    text = tail_of(b"x" * 1_000_000 + b"the end\n")

    assert (text[-9:], len(text)) == ("xxthe end", recent_output.TAIL_BYTES - 1)


FRAME = b'  File "train.py", line %d, in step\n'
HEADER = b"Traceback (most recent call last):\n"


@pytest.mark.parametrize("frames", [100, 5_000])
def test_traceback_longer_than_the_tail_keeps_its_beginning(frames: int) -> None:
    """One line has the number of omitted lines."""
    steps = (FRAME % number for number in range(frames))
    lines = tail_of(b"before\n" + HEADER, *steps, b"ValueError: boom\n").splitlines()

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
    steps = (b"step %d\n" % number for number in range(lines))
    text = tail_of(HEADER + FRAME % 1 + b"ValueError: retried\n", *steps)

    assert (len(text.splitlines()), "retried" in text) == (recent_output.TAIL_LINES, False)


@pytest.mark.parametrize("more", range(4))
def test_ignored_exception_keeps_its_first_line(more: int) -> None:
    """Without that line it would look like the end of the script."""
    ignored = b"Exception ignored in: <Store>\n" + HEADER + FRAME % 1 + b"OSError: harmless\n"

    lines = tail_of(ignored * 5_000 + b"bye\n" * more).splitlines()

    assert tracebacks.last_traceback(lines) is None


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
