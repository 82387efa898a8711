"""Ids that are all ``int`` and must not be mixed up, and the ranks that a user names."""

from typing import NewType

from msgspec import Struct

LocalRank = NewType("LocalRank", int)
"""A worker's index on its node, from 0."""

GlobalRank = NewType("GlobalRank", int)
"""A worker's index in the job, from 0."""

NodeRank = NewType("NodeRank", int)
"""A node's index in the job, from 0."""


class RankSet(Struct, frozen=True):
    """Ranks as a user names them, ``0,8-15``; there need not be such workers."""

    ranges: tuple[tuple[int, int], ...]
    """First and last of each."""

    @property
    def lowest(self) -> int:
        """The lowest of them."""
        return min(first for first, _ in self.ranges)

    def __contains__(self, rank: int) -> bool:
        """Return whether ``rank`` is one of them."""
        return any(first <= rank <= last for first, last in self.ranges)

    def __str__(self) -> str:
        """Return them as a user would type them."""
        return ",".join(
            f"{first}" if first == last else f"{first}-{last}" for first, last in self.ranges
        )
