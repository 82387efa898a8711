"""When the state of a progress bar becomes a line."""

import pytest

from tests.workers.door import (
    Progress,
)


def test_a_bar_is_a_line_each_ten_seconds() -> None:
    """The first line comes after ten seconds, and none while the bar does not move."""
    progress = Progress(10.0)
    states = {0: b"1%", 5: b"2%", 10: b"3%", 15: b"3%", 25: b"3%", 26: b"4%", 36: b"4%", 37: b"5%"}

    printed = {at: progress.look(state, at) for at, state in states.items()}

    assert {at: state for at, state in printed.items() if state} == {
        10: b"3%",
        26: b"4%",
        37: b"5%",
    }


def test_a_short_bar_is_no_line_of_its_own() -> None:
    """Its end is a line anyway; the next bar begins anew."""
    progress = Progress(10.0)

    assert [progress.look(state, at) for at, state in ((0, b"1%"), (9, b""), (10, b"2%"))] == [
        b""
    ] * 3
    assert progress.due == 20


def test_nothing_is_due_while_no_bar_moves() -> None:
    """Nothing wakes the relay then."""
    progress = Progress(10.0)
    assert progress.due is None

    progress.look(b"1%", 0)
    assert progress.due == 10

    progress.look(b"1%", 10)
    assert progress.due is None

    progress.look(b"", 11)
    assert progress.due is None


@pytest.mark.parametrize(("interval", "state"), [(0.0, b"1%"), (10.0, b"     ")])
def test_no_lines_at_all(interval: float, state: bytes) -> None:
    """An interval of 0 prints none, nor does a bar that was removed."""
    progress = Progress(interval)

    assert [progress.look(state, at) for at in range(0, 100, 10)] == [b""] * 10
    assert progress.due is None
