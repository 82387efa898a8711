"""Control sequences of ranks that share one terminal."""

import pytest
from clusterrun.workers.relay.lines import without_movements


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
