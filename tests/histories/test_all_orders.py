"""A suspension step is agreed on correctly in every interleaving of ranks, agents and messages."""

from collections.abc import Sequence

import pytest

from tests.histories.all_orders import DEATHS, Orders


@pytest.mark.parametrize(
    ("sizes", "deaths", "hows"),
    [
        pytest.param(
            *((1, 1), ["lost"], {"suspended", "too late", "all end", "failed"}),
            marks=pytest.mark.long,
        ),
        (
            (2,),
            ["fails", "exits", "hangs"],
            {"suspended", "too late", "all end", "failed", "the grace runs", "a rank hangs"},
        ),
    ],
)
def test_two_ranks_save_at_one_step(
    sizes: Sequence[int], deaths: Sequence[str], hows: set[str]
) -> None:
    """All ranks save at the same step, none waits forever, and all end when one fails or is lost."""
    assert Orders(sizes, 2, deaths).explore()[1] == hows


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("sizes", "steps", "deaths"),
    [
        ((1, 1), 2, DEATHS),
        ((3,), 2, ()),
        ((3,), 1, ("fails", "exits")),
        *(((2, 1), 2, (death,)) for death in ("hangs", "lost")),
    ],
)
def test_more_ranks_save_at_one_step(
    sizes: Sequence[int], steps: int, deaths: Sequence[str]
) -> None:
    """One request and one accident, in all orders."""
    ends = Orders(sizes, steps, deaths).explore()[1]

    assert {"suspended", "too late", "all end"} <= ends
    assert ("failed" in ends) == bool({"fails", "lost"} & {*deaths})
    assert ("the grace runs" in ends) == ("hangs" in deaths)
