"""Bytes become lines, whatever the bytes are and however reads cut them."""

import random
import re
import time
from itertools import pairwise

import pytest
from clusterrun.workers.relay import screen
from clusterrun.workers.relay.lines import LineBuffer, without_movements
from hypothesis import given
from hypothesis import strategies as st

LONGEST = 6
"""Of the lines in the property tests, small so that long ones are common."""

ANY_BYTES = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b" ", b"\xff", b"1234567"]), max_size=40
).map(b"".join)


def collect(chunks: list[bytes], longest: int = screen.MAX_LINE_LENGTH) -> bytes:
    buffer = LineBuffer(longest)
    return b"".join(buffer.feed(chunk) for chunk in chunks) + buffer.finish()


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[low:high] for low, high in pairwise(edges)]


def expected(data: bytes, longest: int) -> bytes:
    """Return the expected output, computed line by line."""
    *lines, last = data.split(b"\n")
    whole = b"".join(state_of(line, longest) + b"\n" for line in lines)
    rest = state_of(last, longest)
    return whole + (rest + b"\n" if rest else b"")


def state_of(line: bytes, longest: int) -> bytes:
    """Return the last state of a line, or everything from its first state that is too long."""
    states = line.split(b"\r")
    for index, state in enumerate(states):
        if len(state) > longest:
            return b"\r".join(states[index:])
    return next((state for state in reversed(states) if state), b"")


@given(data=ANY_BYTES, cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_lines_do_not_depend_on_how_reads_cut_the_bytes(data: bytes, cuts: list[int]) -> None:
    assert collect(cut(data, cuts), LONGEST) == expected(data, LONGEST)


@given(data=st.binary(max_size=300).map(lambda data: data.replace(b"\r", b"?")))
def test_bytes_without_carriage_returns_are_unchanged(data: bytes) -> None:
    """A newline is added if the last line has none."""
    assert collect([data]) == data + (b"\n" if data and not data.endswith(b"\n") else b"")


def test_progress_bar_becomes_its_last_state() -> None:
    """CR LF is a newline."""
    bar = b"".join(b"\r%3d%%" % done for done in range(101))

    assert collect([b"start\n", bar, b"\r\nnext\r\n"]) == b"start\n100%\nnext\n"


def test_nested_progress_bars_are_bars() -> None:
    """Tqdm moves down and up again to draw a nested bar, two lines for a third bar."""
    buffer = LineBuffer()
    up = b"\x1b[A"
    drawn = [b"\router 0%", b"\n\rinner 0%" + up, b"\n\rinner 50%" + up]
    drawn += [b"\n\n\rdeep 10%" + up * 2, b"\n\n\rdeep 20%" + up * 2, b"\n\rinner 99%" + up]

    lines = b"".join(buffer.feed(chunk) for chunk in [*drawn, b"\router 50%", b"\n"])

    assert lines == b"outer 0%\ninner 50%\nouter 50%\n"


UNFINISHED = (
    # What is read, the unfinished line, and the bar that it is: a prompt is not one.
    (b"name? ", b"name? ", b""),
    (b"\r 10%", b" 10%", b" 10%"),
    (b"\r 20%", b" 20%", b" 20%"),
    (b"\r", b" 20%", b" 20%"),
    (b" 30%\r", b" 30%", b" 30%"),
    (b"\n 40%", b" 40%", b""),
    (b" of 5\r", b" 40% of 5", b" 40% of 5"),
    (b"\nprompt> ", b"prompt> ", b""),
    (b"\n\r1%", b"1%", b"1%"),
    (b"\r2%\r\n", b"", b""),
)


def test_unfinished_line_has_its_last_state() -> None:
    """Before and after the carriage return; it is a bar only if it was drawn again."""
    buffer = LineBuffer()
    seen = []

    for chunk, _, _ in UNFINISHED:
        buffer.feed(chunk)
        seen.append((chunk, buffer.unfinished, buffer.bar))

    assert seen == [*UNFINISHED]


def test_endless_progress_bar_needs_bounded_memory() -> None:
    buffer = LineBuffer()

    for done in range(10_000):
        assert buffer.feed(b"\r%d of 10000" % done) == b""

    assert buffer.finish() == b"9999 of 10000\n"


def test_too_long_line_is_returned_in_pieces() -> None:
    """None of its bytes waits for a newline, and none is lost."""
    buffer = LineBuffer()
    piece = random.Random(0).randbytes(1000).replace(b"\n", b"?").replace(b"\r", b"?")

    pieces = [buffer.feed(piece) for _ in range(100)]

    assert b"".join(pieces) == piece * 100
    assert [bool(passed) for passed in pieces] == [False] * 65 + [True] * 35
    assert buffer.feed(b"end\nnext\n") == b"end\nnext\n"


@pytest.mark.parametrize("filling", [b"x", b"\r", b"\r\r\r\n", b"\rx", b" \r\r"])
def test_hostile_input_takes_linear_time(filling: bytes) -> None:
    """Megabytes without a newline, or full of carriage returns."""
    data = filling * (4_000_000 // len(filling))
    start = time.process_time()

    collect([data[at : at + 65536] for at in range(0, len(data), 65536)])

    assert time.process_time() - start < 5


@given(text=ANY_BYTES, continues=st.booleans())
def test_prefix_comes_before_each_line(text: bytes, *, continues: bool) -> None:
    """Not before the rest of a line that was begun."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", text)
    wanted = b"".join(b"[r] " + line for line in lines)

    prefixed = screen.with_prefix(b"[r] ", text, continues=continues)

    assert prefixed == (wanted[4:] if continues and lines else wanted)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"\x1b[1;31mloss\x1b[0m 0.5\n", b"\x1b[1;31mloss\x1b[0m 0.5\n"),
        (b"\x1b[?25l\x1b[2J\x1b[3;1Hloss\x1b[K 0.5\n", b"loss 0.5\n"),
        (b"\x1b[?25h", b""),
        (b"\x1b]0;title\x07a\x1b]8;;http://b\x1b\\c\x1b]0;cut\n", b"ac\n"),
        (b"a\x1bcb\x1b(B\x1bMc\n", b"abc\n"),
    ],
)
def test_colours_stay_and_cursor_movements_are_removed(text: bytes, shown: bytes) -> None:
    assert without_movements(text) == shown
