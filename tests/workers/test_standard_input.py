"""Which workers read standard input."""

import pytest
from msgspec.structs import replace

from tests.workers.door import (
    Fact,
    StandardInput,
    Terminal,
)
from tests.workers.fork_server_bench import plan_of


@pytest.mark.parametrize(
    ("stdin_rank", "has_terminal", "workers", "expected"),
    [
        (None, False, 2, [0]),
        (1, False, 2, [1]),
        (None, False, 1, [0]),
        (None, True, 2, [0, 1, 8]),
        (0, True, 2, [0]),
        (8, True, 2, [8]),
        (1, True, 1, [0, 1, 8]),
    ],
)
def test_who_reads(
    *, stdin_rank: int | None, has_terminal: bool, workers: int, expected: list[int]
) -> None:
    """A terminal is read by any worker or the chosen rank, other input by one rank."""
    terminal = Terminal(0) if has_terminal else None
    standard_input = StandardInput(Fact(stdin_rank, "--stdin-rank"), terminal, workers)

    assert [rank for rank in (0, 1, 8) if standard_input.is_read_by(rank)] == expected


@pytest.mark.parametrize(
    ("stdin_rank", "expected"),
    [
        (None, []),
        (1, []),
        (2, ["--stdin-rank: there is no rank 2: no worker reads standard input"]),
    ],
)
def test_a_rank_that_is_not_there(stdin_rank: int | None, expected: list[str]) -> None:
    """The last rank of the job may be chosen; for a higher one there is a remark."""
    plan = plan_of(["true"])
    plan = replace(plan, world=replace(plan.world, size=2))
    standard_input = StandardInput(Fact(stdin_rank, "--stdin-rank"), terminal=None, workers=2)

    assert list(standard_input.remarks(plan)) == expected
