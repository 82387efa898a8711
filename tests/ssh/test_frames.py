"""Frames between the client and a starter."""

import pytest

from tests.ssh.door import (
    LONGEST,
    FrameReader,
    Kind,
    NotAFrame,
    frame,
)


def test_frames_arrive_in_any_pieces() -> None:
    """One byte at a time, or several frames at once."""
    sent = frame(Kind.OUT, b"one\ntwo") + frame(Kind.HEARTBEAT) + frame(Kind.SIGNAL, b"15")
    expected = [(Kind.OUT, b"one\ntwo"), (Kind.HEARTBEAT, b""), (Kind.SIGNAL, b"15")]
    reader = FrameReader()

    by_bytes = [it for number in sent for it in reader.feed(bytes([number]))]

    assert by_bytes == expected
    assert list(FrameReader().feed(sent)) == expected


@pytest.mark.parametrize("data", [b"welcome", b"\0\0\0\0\0", b"\x07" + (LONGEST + 1).to_bytes(4)])
def test_what_another_program_prints_is_none(data: bytes) -> None:
    """An unknown kind, or a length that no frame has."""
    with pytest.raises(NotAFrame):
        list(FrameReader().feed(data))
