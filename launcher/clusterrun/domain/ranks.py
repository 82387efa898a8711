"""Ranks: integers of three kinds that must not be mixed up, and sets of ranks."""

from collections.abc import Iterable
from typing import NewType

from msgspec import Struct

from clusterrun.domain.cpuset import runs

LocalRank = NewType("LocalRank", int)
"""A worker's index on its node, from 0."""

GlobalRank = NewType("GlobalRank", int)
"""A worker's index in the job, from 0."""

NodeRank = NewType("NodeRank", int)
"""A node's index in the job, from 0."""


class RankSet(Struct, frozen=True):
    """Ranks as a user lists them, ``0,8-15``; workers of these ranks need not exist."""

    ranges: tuple[tuple[int, int], ...]
    """First and last rank of each range."""

    @property
    def lowest(self) -> int:
        return min(first for first, _ in self.ranges)

    def __contains__(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self.ranges)

    def __str__(self) -> str:
        return ",".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges
        )


def named_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as messages name them: "rank 3", "ranks 3, 5-7"."""
    known = sorted(ranks)
    return f"rank{'s' if len(known) > 1 else ''} {', '.join(runs(known))}"
