"""What the report quotes of a worker's standard error."""

from launcher.workers.tail import TAIL_BYTES, TAIL_LINES, Tail, plain


def test_short_output_is_kept_whole() -> None:
    """A few lines are the tail themselves, empty ones included."""
    tail = Tail()

    tail.add(b"Traceback:\n\n")
    tail.add(b"ValueError: no\n")

    assert tail.text() == "Traceback:\n\nValueError: no"


def test_the_last_lines_of_much_output_are_kept() -> None:
    """Sixty whole lines; the one that lost its beginning is left out."""
    tail = Tail()

    for number in range(100_000):
        tail.add(b"line %d\n" % number)

    assert tail.text().splitlines() == [f"line {n}" for n in range(100_000 - TAIL_LINES, 100_000)]


def test_long_lines_are_cut_to_whole_ones() -> None:
    """No more than some KiB, and no half line."""
    tail = Tail()

    for number in range(200):
        tail.add(b"%d %s\n" % (number, b"x" * 1000))
    lines = tail.text().splitlines()

    assert len("".join(lines)) <= TAIL_BYTES
    assert [len(line) for line in lines] == [1004] * len(lines)
    assert lines[-1].startswith("199 ")


def test_the_end_of_one_endless_line_is_kept() -> None:
    """Better half a line than none."""
    tail = Tail()

    tail.add(b"x" * 1_000_000 + b"the end\n")

    assert tail.text().endswith("xxthe end")
    assert len(tail.text()) == TAIL_BYTES - 1


def test_escape_sequences_and_controls_are_taken_out() -> None:
    """A report must not move the reader's cursor or change his colours."""
    text = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(B\x07bell\x00 \x1b[Aup\ttab \xff \xc3\xbc\n"

    assert plain(text) == "red bell up\ttab \ufffd ü\n"
