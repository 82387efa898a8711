"""Ranks as a user lists them."""

from tests.domain.door import (
    RankSet,
)


def test_a_set_of_ranges() -> None:
    """It contains the ends of its ranges, and prints as it is typed."""
    ranks = RankSet(((8, 15), (0, 0)))

    assert [rank for rank in range(20) if rank in ranks] == [0, *range(8, 16)]
    assert ranks.lowest == 0
    assert str(ranks) == "8-15,0"
