"""The last line of a worker, and the number of its lines."""

from clusterrun.workers.relay import recent_output


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
