"""What a worker has printed last: bounded, and read on from where a reader was."""

from tests.workers.door import kept


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %07d\n" % number for number in range(first, last))


def test_a_reader_goes_on_where_it_was() -> None:
    """Nothing twice, nothing left out."""
    recent = kept.Recent()
    recent.add(b"one\n")
    position, left_out, first = recent.read(0, 100)
    recent.add(b"two\n")

    assert (position, left_out, first) == (4, 0, b"one\n")
    assert recent.read(position, 100) == (8, 0, b"two\n")
    assert recent.read(8, 100) == (8, 0, b"")


def test_memory_is_bounded_and_lines_stay_whole() -> None:
    """However much is added, in whatever pieces; a slow reader learns how much it has missed."""
    recent = kept.Recent()
    recent.add(lines(0, 10))
    for first in range(10, 100_000, 1000):
        recent.add(lines(first, first + 1000))
    recent.add(lines(100_010, 200_000))

    position, left_out, text = recent.read(130, 10**9)

    assert kept.RECENT_BYTES - 20 <= len(text) <= 2 * kept.RECENT_BYTES
    assert text.startswith(b"line 0")
    assert text.endswith(b"line 0199999\n")
    assert 130 + left_out + len(text) == position


def test_the_last_bytes_are_read() -> None:
    """Whole lines of them; one that is longer is cut."""
    recent = kept.Recent()
    recent.add(lines(0, 10))
    long = kept.Recent()
    long.add(b"x" * 50)

    assert recent.read(0, 30)[1:] == (0, lines(8, 10))
    assert recent.read(13, 30)[1:] == (7 * 13, lines(8, 10))
    assert long.read(0, 30)[2] == b"x" * 30


def test_lines_with_a_text() -> None:
    """Others count as read."""
    recent = kept.Recent()
    recent.add(lines(0, 20))

    assert recent.read(0, 100, b"05") == (260, 0, lines(5, 6))


def test_the_last_line_is_not_blank() -> None:
    """Scripts end with empty lines."""
    recent = kept.Recent()
    assert recent.last_line() == b""
    recent.add(b"one\ntwo\n\n\n")

    assert recent.last_line() == b"two"
