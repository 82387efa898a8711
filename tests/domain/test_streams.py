"""Streams that a user chooses, for all workers or by local rank."""

from tests.domain.door import (
    Std,
    StreamChoice,
)


def test_of_all_workers_or_of_some() -> None:
    """A worker that is not listed has the default."""
    choice = StreamChoice(Std.NONE, {1: Std.ALL})

    assert [choice.of(rank) for rank in (0, 1)] == [Std.NONE, Std.ALL]
    assert str(choice) == f"1:{Std.ALL.value}"
    assert str(StreamChoice(Std.OUT, {})) == str(Std.OUT.value)


def test_no_stream_is_false() -> None:
    """Neither of all workers nor of one."""
    assert not StreamChoice(Std.NONE, {0: Std.NONE})
    assert StreamChoice(Std.NONE, {0: Std.ERR})
