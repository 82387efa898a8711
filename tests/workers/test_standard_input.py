"""Which workers read standard input."""

import pytest
from clusterrun.workers import terminal


@pytest.mark.parametrize(
    ("has_terminal", "workers", "expected"),
    [(False, 2, [0]), (False, 1, [0]), (True, 2, [0, 1, 8]), (True, 1, [0, 1, 8])],
)
def test_ranks_that_read_standard_input(
    *, has_terminal: bool, workers: int, expected: list[int]
) -> None:
    """All read a terminal; only rank 0 reads other input."""
    standard_input = terminal.StandardInput(terminal.Terminal(0) if has_terminal else None, workers)

    assert [rank for rank in (0, 1, 8) if standard_input.is_read_by(rank)] == expected
