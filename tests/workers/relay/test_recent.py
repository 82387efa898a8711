"""What a worker has printed last: its last line, and how many it has printed."""

from clusterrun.workers.relay import recent_output


def test_the_last_line_is_not_blank() -> None:
    """Scripts end with empty lines, in the same piece or in the next."""
    recent = recent_output.Recent()
    assert recent.last_line() == b""
    recent.add(b"one\ntwo\n\n")
    recent.add(b" \n\n")
    recent.add(b"")

    assert recent.last_line() == b"two"
    assert recent.lines == 5


def test_memory_is_bounded() -> None:
    """Also for a line that is longer, and comes in pieces."""
    recent = recent_output.Recent()
    recent.add(b"first\n" + b"x" * 1_000_000)
    recent.add(b"y" * 1_000_000)

    assert recent.last_line() == b"y" * recent_output.RECENT_BYTES
    assert recent.lines == 1
